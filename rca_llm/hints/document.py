"""Writes the page about the rules from the rules themselves: `python -m rca_llm.hints.document`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from rca_llm.hints import RULES
from rca_llm.hints.advice import table
from rca_llm.hints.model import Rule, Stage
from rca_llm.hints.thresholds import documented

_HEAD = """\
# Hints: the rules and their gates

<!-- Written by `python -m rca_llm.hints.document > docs/hints.md`; a test compares the two. -->

Gates look at the data first. A failed gate silences the rules that read what it took away, or
makes them less sure. Then the rules run in this order, so that a later one never claims what an
earlier one explains: {order}. A hint about the device is left out where an earlier class explains
more and no hint says so.

A hint carries the numbers compared, the thresholds, the population and the window they were
computed on, and what would disprove it. Confidence is *high* with direct evidence of the cause,
*medium* with the symptom and the alternatives excluded, *low* with the symptom alone; hints of low
confidence say "possible". Hints come in the order of `saving_ns`: the latency that a replay of the
dependency graph ([whatif.md](whatif.md)) saves without the cause, summed over the requests it
touched (over the window where there are none). Where time follows from other causes (queueing,
interference, preemption), and over several ranks whose collectives were not all recorded or that
were analysed apart, it is what the cause is charged with; unknown savings come last. A hint that
another one explains claims no more than that.

Shares of steps are taken over steady steps: the first five and those that compile are left out,
unless there are ten or fewer. Every threshold stands in `rca_llm/hints/thresholds.toml` with its
source: `brief` is given, `thread` is taken from a public report, `proposal` is not calibrated yet.
`rca-llm report --thresholds FILE` uses others: a TOML file of tables such as `[R08]` with lines
such as `pause_ns = 5_000_000`.

## Not judged

| rule | the record that would be needed |
|---|---|
| R36 NUMA-REMOTE | `nodes` of machine and GPU; `cpu` of `states`, or samples of pages by node |
| R46 BANK-CONFLICT | the counter `gpu.bank_conflicts` (`--counters`; not every GPU has it) |
| R47 STRIDED-ACCESS | the counter `gpu.load_sectors`, likewise |
| R25 GEMM-BELOW-75 | shapes of matrix products (`torch.profiler` with `record_shapes=True`) |

Without these records the rules say nothing.
"""


def page() -> str:
    """The whole page as Markdown."""
    order = " → ".join(stage.name.lower() for stage in Stage)
    head = _HEAD.format(order=order)
    sections = ["\n".join(_section(rule)) for rule in sorted(RULES, key=lambda rule: rule.id)]
    return "\n\n".join([head.rstrip(), *sections]) + "\n"


def _section(rule: Rule) -> Iterator[str]:
    yield f"## {rule.id} {rule.name}"
    yield ""
    yield f"Class {rule.class_}, stage {rule.stage.name.lower()}."
    yield ""
    yield inspect.getdoc(rule.function) or ""
    yield ""
    yield f"Disproved by: {rule.disproof}."
    rows = documented().get(rule.id, {})
    if rows:
        yield "\n| threshold | value | source | meaning |\n|---|---|---|---|"
    for name, row in rows.items():
        yield f"| `{name}` | {row['value']:,} | {row['source']} | {row['meaning']} |"
    advice = table().get(rule.id, {})
    if advice:
        yield ""
    for engine, text in advice.items():
        yield f"- {re.sub('^any', 'Try', engine)}: {text}"


if __name__ == "__main__":
    print(page(), end="")
