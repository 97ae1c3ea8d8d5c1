"""Writing an outcome to a folder: tables, figures of single queries, TREC runs, plots and the report.

table.md, results.json     all figures of the comparison
per_query.jsonl            the measures of every query
runs/*.trec                the answers of each system
plots/*.svg, plots/*.png   the plots
report.html                everything in one page
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from coil.comparison.outcome import Outcome
from coil.comparison.plots import DARK, LIGHT, plots_of, render
from coil.comparison.report import make_report, make_summary
from coil.comparison.tables import as_markdown, summary_markdown
from coil.errors import OutputError
from coil.texts.runs import write_run

REPORT, TABLE, RESULTS, PER_QUERY = "report.html", "table.md", "results.json", "per_query.jsonl"


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write everything about one collection."""
    for inner in (folder, folder / "runs", folder / "plots"):
        _make(inner)
    _write(folder / TABLE, as_markdown(outcome))
    _write(folder / RESULTS, json.dumps(outcome.to_json(), indent=1, ensure_ascii=False) + "\n")
    lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in outcome.per_query())
    _write(folder / PER_QUERY, "".join(lines))
    names = file_names([system.label for system in outcome.systems])
    for name, system in zip(names, outcome.systems, strict=True):
        rows = (
            (answer.query_id, zip(answer.doc_ids, answer.scores, strict=True))
            for answer in system.run.answers
        )
        write_run(folder / "runs" / f"{name}.trec", rows, tag=name)
    embedded = {}
    for name, draw in plots_of(outcome).items():
        light = render(draw, LIGHT, "svg")
        embedded[name] = (light, render(draw, DARK, "svg"))
        _write(folder / "plots" / f"{name}.svg", light)
        _write(folder / "plots" / f"{name}.png", render(draw, LIGHT, "png"))
    _write(folder / REPORT, make_report(outcome, embedded))


def write_summary(outcomes: Sequence[Outcome], folder: Path, title: str) -> None:
    """Write the tables over several collections; each collection has its own folder."""
    _make(folder)
    names = file_names([outcome.collection for outcome in outcomes])
    _write(folder / TABLE, summary_markdown(outcomes, title))
    _write(folder / REPORT, make_summary(outcomes, title, [f"{name}/{REPORT}" for name in names]))
    found = {outcome.collection: outcome.to_json() for outcome in outcomes}
    text = json.dumps({"title": title, "collections": found}, indent=1, ensure_ascii=False)
    _write(folder / RESULTS, text + "\n")


def file_names(labels: Sequence[str]) -> list[str]:
    """A unique name for each label that is valid on every file system."""
    names: list[str] = []
    for label in labels:
        plain = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:60] or "system"
        name, number = plain, 2
        while name in names:
            name, number = f"{plain}-{number}", number + 1
        names.append(name)
    return names


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be created: {error.strerror}", "choose another folder with --out"
        ) from error


def _write(path: Path, content: str | bytes) -> None:
    """Write a file atomically."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(unfinished, path)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}", "check the folder and the free disk space"
        ) from error
