"""What to try: advice by rule and engine, from `advice.toml`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources

from rca_llm.hints.thresholds import parse


def advice(
    id: str, engine: str | None, more: str | None = None, on: Collection[str] = ()
) -> list[str]:
    """Sentences that say what to try: the finding's own, the engine's, and the general one.

    `on` are settings of the engine that are known to be on: what there is to say then, goes before
    what would advise them.
    """
    rows = table().get(id, {})
    texts = [more, _row(rows, engine, on) if engine else None, _row(rows, "any", on)]
    return [text for text in texts if text]


def _row(rows: Mapping[str, str], who: str, on: Collection[str]) -> str | None:
    special = (rows.get(f"{who}, {setting} on") for setting in on)
    return next((text for text in special if text is not None), rows.get(who))


@cache
def table() -> dict[str, dict[str, str]]:
    """The advice of every rule: under `any`, and under the names of engines.

    Either may be followed by a setting that is on, as in `vllm, async_scheduling on`.
    """
    text = resources.files("rca_llm.hints").joinpath("advice.toml").read_text(encoding="utf-8")
    return parse(text)
