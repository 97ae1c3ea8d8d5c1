"""`coil evaluate`: evaluates runs against judgements, with significance tests against the first run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from coil.errors import InputError, how_many
from coil.metrics.evaluation import DEFAULT_MEASURES, Evaluation, evaluate, parse_measures, split_measures
from coil.metrics.significance import Comparison, compare
from coil.texts.judgements import read_judgements
from coil.texts.opening import STANDARD_INPUT
from coil.texts.runs import read_run

Row = list[str]


def _check_measures(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    try:
        return tuple(str(measure) for measure in parse_measures(split_measures(value)))
    except InputError as error:
        raise click.BadParameter(str(error), ctx=ctx, param=parameter) from error


@click.command("evaluate")
@click.argument("qrels", metavar="QRELS")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--measures",
    default=" ".join(DEFAULT_MEASURES),
    show_default=True,
    callback=_check_measures,
    help="Measures as in ir_measures, separated by spaces, such as 'nDCG@10 RR@10 R@100 P@5 AP'.",
)
@click.option("--per-query", is_flag=True, help="Show the values of each query before the means.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line instead of a table.")
def command(
    qrels: str, runs: tuple[str, ...], measures: tuple[str, ...], per_query: bool, as_json: bool
) -> None:
    """Evaluate runs against relevance judgements.

    QRELS lists the documents relevant to each query: a TREC file (query, 0, document, relevance),
    a BEIR tsv (query-id, corpus-id, score), or a BEIR folder with qrels/test.tsv. Each RUN is a TREC file
    with six columns (query, Q0, document, rank, score, tag). Files may be compressed; `-` is standard input.

    \b
    Example: is COIL better than BM25 on SciFact?
      coil evaluate scifact/ bm25.trec coil.trec
      coil evaluate scifact/ coil.trec --measures "nDCG@10 P@5" --json

    The values are those of trec_eval: documents are ordered by score, ties by document id in descending
    order. Means are over all judged queries; a query that is missing from a run counts as 0. The p next to a
    mean is from a paired two-sided t-test against the first run, not corrected for multiple comparisons;
    --json also reports a paired randomisation test. On a terminal, the best mean is bold.
    """
    if [qrels, *runs].count(STANDARD_INPUT) > 1:
        raise click.UsageError("Standard input (-) can be read only once.")
    judgements = read_judgements(qrels)
    evaluations: list[Evaluation] = []
    for run in runs:
        found = read_run(run)
        unjudged = sum(1 for query_id in found if query_id not in judgements)
        if found and unjudged == len(found):
            raise InputError(
                f"none of the {how_many(unjudged, 'query')} of {run} is judged in {qrels}",
                "pass the judgements for the same queries; ids are case-sensitive",
            )
        if unjudged:
            click.echo(
                f"coil: {run} has {how_many(unjudged, 'query')} without judgements (ignored)", err=True
            )
        evaluation = evaluate(judgements, found, measures)
        if evaluation.unanswered:
            missing, total = len(evaluation.unanswered), len(evaluation.queries)
            click.echo(
                f"coil: {run} has no results for {missing} of {total} judged queries (counted as 0)", err=True
            )
        evaluations.append(evaluation)
    comparisons = [
        {measure: compare(evaluations[0], evaluation, measure) for measure in measures}
        for evaluation in evaluations[1:]
    ]
    if as_json:
        _print_json(runs, evaluations, comparisons, per_query)
        return
    names = _short_names(runs)
    if per_query:
        _print_per_query(names, evaluations, measures)
        click.echo()
    _print_means(names, evaluations, comparisons, measures)


def _print_json(
    runs: Sequence[str],
    evaluations: Sequence[Evaluation],
    comparisons: Sequence[dict[str, Comparison]],
    per_query: bool,
) -> None:
    for number, (run, evaluation) in enumerate(zip(runs, evaluations, strict=True)):
        if per_query:
            for query_id in evaluation.queries:
                values = {measure: evaluation.values[measure][query_id] for measure in evaluation.measures}
                click.echo(json.dumps({"run": run, "query": query_id, "measures": values}))
        summary: dict[str, object] = {
            "run": run,
            "queries": len(evaluation.queries),
            "unanswered": len(evaluation.unanswered),
            "measures": evaluation.means,
        }
        if number:
            summary["against_first"] = {
                measure: {
                    "difference": comparison.difference,
                    "t_test_p": comparison.t_test_p,
                    "randomisation_p": comparison.randomisation_p,
                }
                for measure, comparison in comparisons[number - 1].items()
            }
        click.echo(json.dumps(summary))


def _print_means(
    names: Sequence[str],
    evaluations: Sequence[Evaluation],
    comparisons: Sequence[dict[str, Comparison]],
    measures: Sequence[str],
) -> None:
    several = len(evaluations) > 1
    header = ["run", "queries", *(cell for name in measures for cell in ([name, "p"] if several else [name]))]
    rows: list[Row] = []
    bold: set[tuple[int, int]] = set()
    for number, (name, evaluation) in enumerate(zip(names, evaluations, strict=True)):
        row = [name, str(len(evaluation.queries))]
        for measure in measures:
            shown = _shown(evaluation.means[measure])
            if several and shown == _shown(max(other.means[measure] for other in evaluations)):
                bold.add((number, len(row)))
            row.append(shown)
            if several:
                row.append(_shown_p(comparisons[number - 1][measure].t_test_p) if number else "")
        rows.append(row)
    _print_table(header, rows, bold)


def _print_per_query(
    names: Sequence[str], evaluations: Sequence[Evaluation], measures: Sequence[str]
) -> None:
    rows = [
        [query_id, name, *(_shown(evaluation.values[measure][query_id]) for measure in measures)]
        for query_id in evaluations[0].queries
        for name, evaluation in zip(names, evaluations, strict=True)
    ]
    _print_table(["query", "run", *measures], rows, set(), left=2)


def _print_table(header: Row, rows: list[Row], bold: set[tuple[int, int]], left: int = 1) -> None:
    """Names are left-aligned, numbers right-aligned. `click.echo` drops bold if there is no terminal."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for number, row in enumerate([header, *rows], start=-1):
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        styled = [
            click.style(cell, bold=True) if (number, column) in bold else cell
            for column, cell in enumerate(cells)
        ]
        click.echo("  ".join(styled).rstrip())


def _short_names(runs: Sequence[str]) -> list[str]:
    """File names without folders, if they are distinct; otherwise the full paths."""
    short = [Path(run).name for run in runs]
    return short if len(set(short)) == len(set(runs)) else list(runs)


def _shown(value: float) -> str:
    return f"{value:.4f}"


def _shown_p(p: float) -> str:
    return "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
