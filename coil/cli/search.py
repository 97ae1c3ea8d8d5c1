"""`coil search`: hits for a query, or a TREC run for many."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click
from tqdm import tqdm

from coil.errors import how_many
from coil.explanations.columns import printable
from coil.hits.searcher import Hit, SearchStats
from coil.indexes.opening import open_index
from coil.storage.memory import MOST_THREADS
from coil.texts.queries import read_queries
from coil.texts.runs import write_run

_AT_ONCE = 64


@click.command("search")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("query", required=False)
@click.option("-k", type=click.IntRange(min=0), default=10, show_default=True, help="Number of hits.")
@click.option("--filter", "expression", help="Only documents whose fields match, such as: year >= 2020.")
@click.option("--tok-only", is_flag=True, help="Ignore the sentence vector; count exact matches only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per hit.")
@click.option(
    "--stats", is_flag=True, help="Print to standard error what was scored and skipped, and the time."
)
@click.option(
    "--threads", type=click.IntRange(1, MOST_THREADS), default=1, show_default=True,
    help="Threads per search; worthwhile from about 100,000 documents.",
)  # fmt: skip
@click.option("--device", help="Score with PyTorch on this device, such as cuda (needs the gpu extra).")
@click.option("--model", metavar="FOLDER", help="The index's model folder, if it has moved.")
@click.option("--queries", help="Search for each query of this file instead.")
@click.option("--run", type=click.Path(path_type=Path), help="With --queries: the TREC run to write.")
def command(
    index: Path,
    query: str | None,
    k: int,
    expression: str | None,
    tok_only: bool,
    as_json: bool,
    stats: bool,
    threads: int,
    device: str | None,
    model: str | None,
    queries: str | None,
    run: Path | None,
) -> None:
    """Search an index.

    \b
      coil search notes.coil "cancel a task that takes too long"
      coil search notes.coil "release notes" --filter 'year >= 2020 and lang = "en"' --json
      coil search scifact.coil --queries scifact/ -k 1000 --run scifact.trec
    """
    if (query is None) == (queries is None):
        raise click.UsageError("Give a query, or --queries FILE with --run OUT.")
    if run is not None and queries is None:
        raise click.UsageError("--run needs --queries FILE.")
    if queries is not None and run is None:
        raise click.UsageError("--queries needs --run OUT.trec for the result.")
    opened = open_index(index, threads=threads, device=device, model=model)
    if queries is None:
        assert query is not None
        [answer] = opened.answer_many([query], k, expression, tok_only)
        if opened.is_unfinished:
            click.echo(
                f"coil: {index} is unfinished; continue building it with `coil index --resume`", err=True
            )
        if not answer.hits and k:
            click.echo(f"coil: no hits: {_why_none(query, expression, len(opened))}", err=True)
        if answer.stats.query_dropped:
            dropped = how_many(answer.stats.query_dropped, "token")
            click.echo(
                f"coil: the query is too long for the model: its last {dropped} were ignored", err=True
            )
        for hit in answer.hits:
            click.echo(json.dumps(asdict(hit), ensure_ascii=False) if as_json else _line(hit))
        if stats:
            click.echo(json.dumps(asdict(answer.stats)) if as_json else _told(answer.stats), err=True)
        return
    asked = list(read_queries(queries))
    cost = SearchStats()
    with tqdm(total=len(asked), unit=" queries", disable=None, desc="searching") as bar:

        def rows() -> Iterator[tuple[str, list[tuple[str, float]]]]:
            for begin in range(0, len(asked), _AT_ONCE):
                block = asked[begin : begin + _AT_ONCE]
                found = opened.answer_many([q.text for q in block], k, expression, tok_only, texts=False)
                for of_query, answer in zip(block, found, strict=True):
                    nonlocal cost
                    cost = cost.plus(answer.stats)
                    yield of_query.query_id, [(hit.doc_id, hit.score) for hit in answer.hits]
                bar.update(len(block))

        assert run is not None
        lines = write_run(run, rows())
    click.echo(f"{how_many(lines, 'hit')} for {how_many(len(asked), 'query')} in {run}", err=True)
    if stats:
        click.echo(json.dumps(asdict(cost)) if as_json else _told(cost), err=True)


def _why_none(query: str, expression: str | None, documents: int) -> str:
    if not query.strip():
        return "the query is empty"
    if not documents:
        return "the index is empty"
    shared = "no document shares a listed word with the query"
    return f"no document matches the filter, or {shared}" if expression else shared


def _told(stats: SearchStats) -> str:
    """What a search cost, in words."""
    lines = [
        f"mentions    {stats.mentions_scored:,} scored, {stats.mentions_skipped:,} skipped",
        f"sentences   {stats.sentences_scored:,} scored, {stats.sentences_skipped:,} skipped"
        + (f" ({stats.sketches_scored:,} sketches read)" if stats.sketches_scored else ""),
        f"time        encode {stats.encode_ms:.1f} ms, score {stats.score_ms:.1f} ms, "
        f"fetch {stats.fetch_ms:.1f} ms",
        f"exact in    {stats.exact_in}"
        + (f", {stats.rescored:,} rows scored again" if stats.rescored else ""),
    ]
    return "\n".join(lines)


def _line(hit: Hit) -> str:
    start, end = hit.chunk
    text = printable(" ".join(hit.text[start:end].split()))
    shown = f"{text[:100]}{'…' if len(text) > 100 else ''}"
    return f"{hit.rank:>3}  {hit.score:8.3f}  {printable(hit.doc_id)}  {shown}"
