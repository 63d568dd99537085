"""A comparison of two traces in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from rca_llm.exporters import units
from rca_llm.exporters.text import shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MOST_ROWS = 12
"""Rows of a table in the terminal; the page and the JSON document hold all."""

WHOLE_NAME = 4000
"""Characters of a name that are kept where the pointer rests on it."""

COLUMNS = ("", "base", "other", "change", "noise", "why")

Row = Mapping[str, Any]


def headline(found: Mapping[str, Any]) -> str:
    """What changed, in one sentence."""
    row = found["latency"]
    unit = found["unit"]
    both = f"{units.duration(row['base_ns'])} → {units.duration(row['other_ns'])} per {unit}"
    if row["changed"] is None:
        return f"{both}; too few {unit}s to tell a change from noise"
    if not row["changed"]:
        return f"No change beyond the noise: {both}"
    word = "slower" if row["delta_ns"] > 0 else "faster"
    change = abs(row["delta_ns"])
    return f"The other side is {units.duration(change)} {word} per {unit}: {both}"


def warnings(found: Mapping[str, Any]) -> Iterator[str]:
    """Why the times of the two sides say little about a change, and what could not be judged."""
    reasons = [
        f"{row['what']}: {shown(row['base'], 120)} → {shown(row['other'], 120)}"
        for row in found["not_comparable"]
    ]
    if reasons:
        yield f"Not comparable because of other {'; other '.join(reasons)}."
    if found["not_judged"]:
        names = ", ".join(found["not_judged"])
        yield f"Whether the two differ in the {names} is not known: not recorded on both sides."


class Name(str):
    """A name cut to what fits into a table, with the whole one where that is longer."""

    whole: str | None = None


def _named(text: str, most: int) -> Name:
    name = Name(shown(text, most))
    longer = shown(text, WHOLE_NAME)
    name.whole = longer if longer != name else None
    return name


def sections(found: Mapping[str, Any]) -> Iterator[tuple[str, list[list[str]]]]:
    """The tables: a title and rows of texts in the order of `COLUMNS`; the first is a `Name`."""
    yield "classes", [cells(row) for row in found["classes"] if row["base_ns"] or row["other_ns"]]
    for name in ("parts", "kernels", "ranges"):
        rows = [row for row in found[name] if row["delta_ns"]]
        yield name, [cells(row) for row in rows]
    hints = [
        [_named(f"{hint['id']} {hint['title']}", 164), "", "", "", "", word]
        for word in ("new", "gone")
        for hint in found["hints"][word]
    ]
    yield "hints", hints


def cells(row: Row) -> list[str]:
    """One row as texts; a change within the noise is marked, an unknown noise is a dash."""
    sign = "+" if row["delta_ns"] > 0 else "−" if row["delta_ns"] < 0 else ""
    change = sign + units.duration(abs(row["delta_ns"]))
    noise = units.duration(row["noise_ns"])
    within = row["changed"] is False and row["delta_ns"] != 0
    return [
        _named(row["name"], 80),
        units.duration(row["base_ns"]),
        units.duration(row["other_ns"]),
        f"({change})" if within else change,
        noise,
        "within the noise" if within else why(row),
    ]


def why(row: Row) -> str:
    """What explains a row: more calls, longer calls, another launch shape."""
    text = str(row.get("why") or "")
    old, new = row.get("base_shape"), row.get("other_shape")
    if "shape" not in text or not old or not new:
        return text
    differing = [key for key in old if old[key] != new[key]]
    changes = ", ".join(f"{key} {_short(old[key])} → {_short(new[key])}" for key in differing)
    return f"{text}: {changes}"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "×".join(map(str, cast("list[object]", value)))
    return str(value)


def show(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Print a comparison to a console, standard output by default."""
    from rich.console import Console
    from rich.text import Text

    out = console or Console(highlight=False)
    out.print(Text(headline(found), style="bold"))
    styles = ("yellow", "dim") if found["not_comparable"] else ("dim",)
    for text, style in zip(warnings(found), styles, strict=False):
        out.print(Text(text, style=style))
    for title, rows in sections(found):
        if rows:
            out.print(_table(title, rows[:MOST_ROWS]))


def _table(title: str, rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in COLUMNS[1:5] else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>RCA-LLM comparison</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: 0.25rem 0.5rem; border-bottom: 1px solid #8884; text-align: left; }
:is(th, td):nth-child(n + 2):nth-child(-n + 5) { text-align: right; white-space: nowrap; }
td:first-child { overflow-wrap: anywhere; }
.warn { border-left: 4px solid #c90; padding-left: 0.6rem; overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>{{ headline }}</h1>
{% for text in warnings %}
<p role="note"{% if loop.first and apart %} class="warn"{% endif %}>{{ text }}</p>
{% endfor %}
<p>Base: {{ base }} ({{ base_units }}). Other: {{ other }} ({{ other_units }}). A change in brackets
lies within the noise: three standard errors of the difference of the means.</p>
{% for title, rows in sections if rows %}
<h2>{{ title }}</h2>
<table>
<tr>{% for name in columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr>
{% for row in rows %}
<tr>
{% for cell in row %}
<td{% if cell.whole is defined and cell.whole %} title="{{ cell.whole }}"{% endif %}>{{ cell }}</td>
{% endfor %}
</tr>
{% endfor %}
</table>
{% endfor %}
</body>
</html>
"""


def page(found: Mapping[str, Any]) -> str:
    """A self-contained page; every text is escaped and nothing is loaded."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    sides = {name: found[name] for name in ("base", "other")}
    return environment.from_string(_PAGE).render(
        headline=headline(found),
        warnings=list(warnings(found)),
        apart=bool(found["not_comparable"]),
        sections=list(sections(found)),
        columns=COLUMNS,
        **{name: ", ".join(shown(path) for path in side["inputs"]) for name, side in sides.items()},
        **{f"{name}_units": _count(side["units"], found["unit"]) for name, side in sides.items()},
    )


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"
