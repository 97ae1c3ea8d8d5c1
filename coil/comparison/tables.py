"""The figures of an outcome as tables of text, for Markdown and HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coil.comparison.outcome import Latency, Outcome, SystemOutcome

MARK = "†"
NOTHING = "–"


@dataclass(frozen=True)
class Cell:
    """A text; columns are sorted by `value`, and the best cell of a column is shown in bold."""

    text: str
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under a header; the first column is a label."""

    name: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


def effectiveness(outcome: Outcome) -> Table:
    """The measures, with a mark if a difference is significant."""
    best = {m: max(s.evaluation.means[m] for s in outcome.systems) for m in outcome.measures}
    rows = []
    for system in outcome.systems:
        cells = [Cell(system.label), Cell(how(system, outcome.k))]
        for measure in outcome.measures:
            mean = system.evaluation.means[measure]
            found = system.differences.get(measure)
            mark = MARK if found is not None and found.is_significant else ""
            cells.append(Cell(f"{show(mean)}{mark}", mean, show(mean) == show(best[measure])))
        rows.append(tuple(cells))
    note = (
        f"{MARK}: differs from {outcome.against} by a paired t-test and by a randomisation test, p < .05 "
        "after Holm's correction."
        if len(outcome.systems) > 1
        else ""
    )
    return Table("Effectiveness", ("system", "how", *outcome.measures), tuple(rows), note)


def costs(outcome: Outcome) -> Table:
    """Latency by part, index size and training time."""
    parts = list(dict.fromkeys(part for system in outcome.systems for part in system.parts))
    rows = []
    for system in outcome.systems:
        run = system.run
        seconds = run.training.get("seconds")
        rows.append(
            (
                Cell(system.label),
                _latency(system.latency),
                *(_latency(system.parts.get(part)) for part in parts),
                Cell(show_bytes(run.index_bytes), run.index_bytes),
                Cell(show_seconds(run.index_seconds), run.index_seconds),
                Cell(show_seconds(seconds) if seconds is not None else NOTHING, seconds),
            )
        )
    header = ("system", "query", *parts, "index", "indexing", "training")
    note = (
        "Milliseconds per query, one query at a time: median, and 95th percentile in brackets. The cost of "
        "the systems that a system builds on is included."
    )
    return Table("Cost", header, tuple(rows), note)


def differences(outcome: Outcome, measure: str) -> Table:
    """The differences between each system and the baseline, in one measure."""
    rows = []
    for system in outcome.systems:
        found = system.differences.get(measure)
        if found is None:
            continue
        rows.append(
            (
                Cell(system.label),
                Cell(show_change(found.difference), found.difference),
                Cell(show_p(found.t_test_holm), found.t_test_holm),
                Cell(show_p(found.randomisation_holm), found.randomisation_holm),
                Cell(f"{found.wins}", found.wins),
                Cell(f"{found.ties}", found.ties),
                Cell(f"{found.losses}", found.losses),
            )
        )
    header = ("system", f"Δ {measure}", "t-test p", "randomisation p", "wins", "ties", "losses")
    note = (
        f"Against {outcome.against}, query by query; p-values after Holm's correction for {len(rows)} tests."
    )
    return Table(f"{measure} against {outcome.against}", header, tuple(rows), note if rows else "")


def as_markdown(outcome: Outcome) -> str:
    """The tables of an outcome as a Markdown page."""
    lines = [f"# {outcome.collection}", "", facts(outcome), ""]
    lines += [f"- {note}" for note in outcome.notes]
    lines += [""] if outcome.notes else []
    tables = [effectiveness(outcome), costs(outcome)]
    if len(outcome.systems) > 1:
        tables += [differences(outcome, measure) for measure in outcome.measures]
    for table in tables:
        lines += [f"## {table.name}", "", *_markdown(table), ""]
        lines += [table.note, ""] if table.note else []
    return "\n".join(lines).rstrip() + "\n"


def summary(outcomes: Sequence[Outcome], measure: str) -> Table:
    """One measure on several collections, with the mean over them."""
    labels = [system.label for system in outcomes[0].systems]
    means = {
        label: [outcome.system(label).evaluation.means[measure] for outcome in outcomes] for label in labels
    }
    columns = {label: [*values, sum(values) / len(values)] for label, values in means.items()}
    best = [max(values) for values in zip(*columns.values(), strict=True)]
    rows = []
    for label, values in columns.items():
        cells = [Cell(label)]
        for number, value in enumerate(values):
            mark = ""
            if number < len(outcomes):
                found = outcomes[number].system(label).differences.get(measure)
                mark = MARK if found is not None and found.is_significant else ""
            cells.append(Cell(f"{show(value)}{mark}", value, show(value) == show(best[number])))
        rows.append(tuple(cells))
    header = ("system", *(outcome.collection for outcome in outcomes), "mean")
    note = (
        f"{MARK}: differs from {outcomes[0].against} on that collection, p < .05 by both tests after Holm's "
        "correction."
    )
    return Table(measure, header, tuple(rows), note)


def summary_markdown(outcomes: Sequence[Outcome], title: str) -> str:
    """A table per measure."""
    lines = [f"# {title}", ""]
    for measure in outcomes[0].measures:
        table = summary(outcomes, measure)
        lines += [f"## {table.name}", "", *_markdown(table), "", table.note, ""]
    return "\n".join(lines).rstrip() + "\n"


def facts(outcome: Outcome) -> str:
    """The collection and the machines in one line."""
    machines = "; ".join(
        f"{m['cpu']}, {m['cores']} cores" + (f", {m['gpu']}" if m.get("gpu") else "")
        for m in outcome.machines
    )
    day = str(outcome.made.get("at", ""))[:10]
    return (
        f"{outcome.documents:,} documents, {len(outcome.queries):,} judged queries, k = {outcome.k:,}. "
        f"coil-ir {outcome.made['versions']['coil-ir']}, {day}. Timed on: {machines}."
    )


def how(system: SystemOutcome, k: int) -> str:
    """Whether a system searches the collection, or reranks or merges the results of others."""
    entry = system.run.entry
    if entry.reranks:
        return f"reranks {min(entry.depth, k):,} of {entry.inputs[0]}"
    return f"merges {' and '.join(entry.inputs)}" if entry.inputs else "retrieval"


def show(value: float) -> str:
    """A measure with three decimals and no leading zero, as in papers."""
    return f"{value:.3f}".removeprefix("0")


def show_change(value: float, digits: int = 4) -> str:
    """A difference, with its sign."""
    text = f"{abs(value):.{digits}f}".removeprefix("0")
    return text if not float(text) else f"{'+' if value > 0 else '−'}{text}"


def show_p(p: float) -> str:
    """A p-value."""
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def show_ms(value: float) -> str:
    """Milliseconds, with about three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def show_bytes(size: float) -> str:
    """A size."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def show_seconds(seconds: float) -> str:
    """A time."""
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.1f} s"


def _latency(found: Latency | None) -> Cell:
    if found is None:
        return Cell(NOTHING)
    return Cell(f"{show_ms(found.median)} ({show_ms(found.p95)})", found.median)


def _markdown(table: Table) -> list[str]:
    left = 2 if table.header[1] == "how" else 1
    rule = "|".join("---" if number < left else "---:" for number in range(len(table.header)))
    lines = ["| " + " | ".join(map(_escaped, table.header)) + " |", f"|{rule}|"]
    for row in table.rows:
        cells = (
            f"**{_escaped(c.text)}**" if c.best and len(table.rows) > 1 else _escaped(c.text) for c in row
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
