"""What to try: advice by rule and engine, from `advice.toml`."""

from __future__ import annotations

from functools import cache
from importlib import resources

from rca_llm.hints.thresholds import parse


def advice(id: str, engine: str | None, more: str | None = None) -> list[str]:
    """Sentences that say what to try: the finding's own, the engine's, and the general one."""
    rows = table().get(id, {})
    texts = [more, rows.get(engine) if engine else None, rows.get("any")]
    return [text for text in texts if text]


@cache
def table() -> dict[str, dict[str, str]]:
    """The advice of every rule: under `any`, and under the names of engines."""
    text = resources.files("rca_llm.hints").joinpath("advice.toml").read_text(encoding="utf-8")
    return parse(text)
