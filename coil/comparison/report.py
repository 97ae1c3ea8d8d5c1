"""The HTML report: tables, plots and single queries in one self-contained page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from coil.comparison.outcome import Outcome, SystemOutcome
from coil.comparison.tables import (
    MARK,
    Table,
    costs,
    differences,
    effectiveness,
    facts,
    how,
    show,
    show_change,
    summary,
)

SHOWN_QUERIES = 8  # with the largest gains, and as many with the largest losses
CAPTIONS = {
    "latency": "Up is better, left is faster.",
    "size": "Up is better, left is smaller.",
    "queries": "Each bar is a query, sorted by its difference. The figures count wins, ties and losses.",
}
_HEAD = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
)

Plots = Mapping[str, tuple[bytes, bytes]]
"""Name → the plot as SVG, light and dark."""


def make_report(outcome: Outcome, plots: Plots) -> str:
    """The page of one collection."""
    parts = [
        f"<h1>{escape(outcome.collection)}</h1>",
        f'<p class="soft">{escape(facts(outcome))}</p>',
        *(f'<p class="note">{escape(note)}.</p>' for note in outcome.notes),
        f'<p class="lead">{_lead(outcome)}</p>',
        '<nav aria-label="Contents"><a href="#effectiveness">Effectiveness</a> <a href="#cost">Cost</a> '
        '<a href="#differences">Differences</a> <a href="#queries">Queries</a> <a href="#systems">Systems</a>'
        "</nav>",
        _section("effectiveness", effectiveness(outcome), outcome.against),
        _section("cost", costs(outcome), outcome.against),
        f'<div class="plots">{_figure("latency", plots)}{_figure("size", plots)}</div>',
        '<h2 id="differences">Differences</h2>',
        *(_table(differences(outcome, measure), "", caption=True) for measure in outcome.measures),
        '<h2 id="queries">Queries</h2>',
        _figure("queries", plots),
        *(_queries(outcome, system) for system in outcome.systems if system.differences),
        '<h2 id="systems">Systems</h2>',
        *(_system(system, outcome.k) for system in outcome.systems),
    ]
    return _page(f"Comparison: {outcome.collection}", parts)


def make_summary(outcomes: Sequence[Outcome], title: str, links: Sequence[str]) -> str:
    """The page of several collections, with `links` to the page of each."""
    listed = " ".join(
        f'<a href="{escape(link)}">{escape(outcome.collection)}</a>'
        for outcome, link in zip(outcomes, links, strict=True)
    )
    tables = (summary(outcomes, measure) for measure in outcomes[0].measures)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<nav aria-label="Collections">{listed}</nav>',
        *(_section(f"measure-{n}", table, outcomes[0].against) for n, table in enumerate(tables)),
    ]
    return _page(title, parts)


def _page(title: str, parts: Sequence[str]) -> str:
    here = files("coil.comparison")
    style, script = (
        (here / name).read_text(encoding="utf-8").strip() for name in ("report.css", "report.js")
    )
    body = "\n".join(part for part in parts if part)
    return (
        f"{_HEAD}<title>{escape(title)}</title>\n<style>\n{style}\n</style>\n</head>\n<body>\n<main>\n{body}\n"
        f"</main>\n<script>\n{script}\n</script>\n</body>\n</html>\n"
    )


def _lead(outcome: Outcome) -> str:
    """The best system, and whether its lead is significant."""
    measure = outcome.measures[0]
    best = max(outcome.systems, key=lambda system: system.evaluation.means[measure])
    mean = show(best.evaluation.means[measure])
    text = f"Highest {escape(measure)}: <strong>{escape(best.label)}</strong>, {mean}"
    found = best.differences.get(measure)
    if found is None:
        return text + "."
    certainty = "a significant difference" if found.is_significant else "not a significant difference"
    base = show(outcome.system(outcome.against).evaluation.means[measure])
    return f"{text}. {escape(outcome.against)} has {base}: {certainty} over {len(outcome.queries):,} queries."


def _section(name: str, table: Table, base: str) -> str:
    return f'<h2 id="{name}">{escape(table.name)}</h2>\n{_table(table, base)}'


def _table(table: Table, base: str, caption: bool = False) -> str:
    """A table that scrolls within the page; the row of `base` is tinted."""
    if not table.rows:
        return ""
    hidden = {place for place, name in enumerate(table.header) if name == "how"}  # shown below the label
    heads = []
    for place, name in enumerate(table.header):
        if place == 0:
            heads.append(f'<th scope="col">{escape(name)}</th>')
        elif place not in hidden:
            button = f'<button type="button">{escape(name)}</button>'
            heads.append(f'<th scope="col" aria-sort="none">{button}</th>')
    rows = []
    for row in table.rows:
        under = "".join(f"<small>{escape(row[place].text)}</small>" for place in hidden)
        cells = [f'<th scope="row">{escape(row[0].text)}{under}</th>']
        for place, cell in enumerate(row):
            if place == 0 or place in hidden:
                continue
            best = ' class="best"' if cell.best and len(table.rows) > 1 else ""
            value = f' data-value="{cell.value:.9g}"' if cell.value is not None else ""
            cells.append(f"<td{best}{value}>{_marked(cell.text)}</td>")
        tint = ' class="base"' if row[0].text == base else ""
        rows.append(f"<tr{tint}>{''.join(cells)}</tr>")
    title = f"<h3>{escape(table.name)}</h3>" if caption else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'{title}<div class="wide" tabindex="0" role="region" aria-label="{escape(table.name)}">'
        f"<table data-sorts><thead><tr>{''.join(heads)}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}"
    )


def _marked(text: str) -> str:
    """A figure with its mark in a separate element, so that the digits stay aligned."""
    plain = text.removesuffix(MARK)
    return f'{escape(plain)}<span class="mark">{MARK}</span>' if plain != text else escape(text)


def _figure(name: str, plots: Plots) -> str:
    if name not in plots:
        return ""
    light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}" for data in plots[name])
    caption = CAPTIONS[name]
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(caption)} The tables have the figures."></picture>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _queries(outcome: Outcome, system: SystemOutcome) -> str:
    """The queries with the largest gains and losses."""
    measure = outcome.measures[0]
    base, own = outcome.system(outcome.against).evaluation.values[measure], system.evaluation.values[measure]
    order = sorted(outcome.queries, key=lambda query: base[query] - own[query])
    gains = [query for query in order[:SHOWN_QUERIES] if own[query] > base[query]]
    losses = [query for query in order[::-1][:SHOWN_QUERIES] if own[query] < base[query]]
    rows = []
    for query in (*gains, *losses[::-1]):
        change = own[query] - base[query]
        rows.append(
            f'<tr><th scope="row">{escape(query)}</th><td class="text">{escape(outcome.queries[query])}</td>'
            f"<td>{show(base[query])}</td><td>{show(own[query])}</td>"
            f'<td class="{"gain" if change > 0 else "loss"}">{show_change(change, 3)}</td></tr>'
        )
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>'
        for name, kind in (
            ("query", ' class="left"'),
            ("text", ' class="left"'),
            (outcome.against, ""),
            (system.label, ""),
            (f"Δ {measure}", ""),
        )
    )
    found = system.differences[measure]
    counts = f"{found.wins} wins, {found.ties} ties, {found.losses} losses"
    return (
        f"<details><summary>{escape(system.label)}: {counts}; largest differences</summary>"
        f'<div class="wide" tabindex="0" role="region" aria-label="Queries of {escape(system.label)}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _system(system: SystemOutcome, k: int) -> str:
    entry, run = system.run.entry, system.run
    listed = {
        "system": entry.kind,
        "how": how(system, k),
        "options": ", ".join(f"{key} = {value}" for key, value in entry.option_texts.items()) or "defaults",
        "model": entry.model or "",
        "training": _training(run.training, entry.training),
        "unanswered queries": str(len(system.evaluation.unanswered)),
        "run": run.key,
    }
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in listed.items() if value
    )
    return f"<details><summary>{escape(system.label)}</summary><dl>{rows}</dl></details>"


def _training(facts_of: Mapping[str, object], name: str | None) -> str:
    if name is None:
        return ""
    steps = facts_of.get("steps")
    length = f"{steps:,} steps" if isinstance(steps, int) and steps else f"{facts_of.get('epochs')} epochs"
    return f"{name}: {length} from {facts_of.get('base')}"
