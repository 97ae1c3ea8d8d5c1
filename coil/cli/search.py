"""`coil search`: hits for one query, or a TREC run for many."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import click

from coil.errors import how_many
from coil.explanations.columns import bar, printable
from coil.hits.answering import Answer, SearchStats
from coil.hits.hit import Hit
from coil.indexes.hits import tell_unknown
from coil.indexes.index import Index
from coil.indexes.opening import open_index
from coil.indexes.questions import check_paging
from coil.progress import ProgressBar
from coil.storage.memory import MOST_THREADS
from coil.texts.asking import Condition
from coil.texts.markup import skip_front_matter
from coil.texts.queries import read_queries
from coil.texts.runs import write_run
from coil.texts.writing import check_output, name_output
from coil.tokens.profile import By

_AT_ONCE = 64
_SHOWN = 100  # characters of a filter or an id in a message
BAR_WIDTH = 8
by_option = click.option(
    "--by", type=click.Choice(get_args(By)), default="coil", show_default=True,
    help="Scoring system: coil (the model's own equation), tokens (without the sentence vector), "
    "bm25, dense (the sentence vector alone), hybrid (bm25 and the sentence vector).",
)  # fmt: skip


@click.command("search")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("query", required=False)
@click.option("-k", type=click.IntRange(min=0), default=10, show_default=True, help="Number of hits.")
@click.option(
    "--filter", "expression", help="Search only documents whose fields match, such as 'year >= 2020'."
)
@by_option
@click.option("--min-score", type=float, metavar="X", help="Omit hits with a lower score.")
@click.option(
    "--min-share", type=float, metavar="X",
    help="Omit hits with a lower share, such as 0.25 (see above).",
)  # fmt: skip
@click.option("--offset", type=click.IntRange(min=0), default=0, help="Skip this many hits.")
@click.option(
    "--sort", metavar="FIELD",
    help="Sort by a field, -FIELD for descending order. Only the best 10,000 hits are sorted; if more "
    "documents match, a message says so.",
)  # fmt: skip
@click.option("--fold-duplicates", is_flag=True, help="Show only the first hit of each distinct text.")
@click.option("--plain", is_flag=True, help="Treat operators in the query as plain text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per hit.")
@click.option(
    "--stats", is_flag=True, help="Print the time, and what was scored and skipped, to standard error."
)
@click.option(
    "--threads", type=click.IntRange(1, MOST_THREADS), default=1, show_default=True,
    help="Threads per search; worthwhile from about 100,000 documents.",
)  # fmt: skip
@click.option("--device", help="Score with PyTorch on this device, such as cuda (needs the gpu extra).")
@click.option("--model", metavar="FOLDER", help="The index's model folder, if it has moved.")
@click.option("--queries", help="Search for each query in this file; operators are not interpreted.")
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    help="With --queries: the TREC run to write; - is standard output.",
)
def command(
    index: Path,
    query: str | None,
    k: int,
    expression: str | None,
    by: By,
    min_score: float | None,
    min_share: float | None,
    offset: int,
    sort: str | None,
    fold_duplicates: bool,
    plain: bool,
    as_json: bool,
    stats: bool,
    threads: int,
    device: str | None,
    model: str | None,
    queries: str | None,
    run: Path | None,
) -> None:
    """Search an index.

    Each line is a hit: rank, score, share, id, text. The share is the score divided by the score that the
    query's own text would have as a document: near 100 %, the text says what the query says, in the same
    words; near 0 %, they have next to nothing in common. Scores are not comparable across queries or systems.

    One index serves five scoring systems, selected by --by. bm25 does not run the language model.

    Operators: "a phrase" and +word must be in the text, -word and -"a phrase" must not, field:word must be in
    the field. Everything else is a plain query. Put -- before a query that begins with a hyphen.

    \b
      coil search notes.coil 'cancel "a task" +timeout -thread title:async'
      coil search notes.coil "cancel a task that takes too long"
      coil search notes.coil "kubernetes" --by bm25
      coil search notes.coil "cancel a task that takes too long" -k 100 --min-share 0.3
      coil search notes.coil "release notes" --filter 'year >= 2020 and lang = "en"' --json
      coil search scifact.coil --queries scifact/ -k 1000 --run coil.trec
      coil search scifact.coil --queries scifact/ -k 1000 --run hybrid.trec --by hybrid
    """
    if (query is None) == (queries is None):
        raise click.UsageError("Pass a query, or --queries FILE with --run OUT.")
    if run is not None and queries is None:
        raise click.UsageError("--run requires --queries FILE.")
    if queries is not None and run is None:
        raise click.UsageError("--queries requires --run OUT.trec.")
    if queries is not None and (offset or sort or fold_duplicates):
        raise click.UsageError("--offset, --sort and --fold-duplicates apply to a single query only.")
    opened = open_index(index, threads=threads, device=device, model=model)
    if queries is None:
        assert query is not None
        paging = check_paging(offset, sort, fold_duplicates)
        [answer] = opened.answer_many(
            [query], k, expression, by, min_score, min_share, paging=paging, plain=plain
        )
        if opened.is_unfinished:
            click.echo(
                f"coil: {index} is incomplete: its build is still running or was interrupted "
                "(continue an interrupted build with `coil index --resume`)",
                err=True,
            )
        if not answer.hits and k:
            why = _why_no_document(opened, query, expression, answer)
            if why is None and offset:
                why = f"there are no more than {answer.sorted_best or offset:,} hits to show; lower --offset"
            if why is None:
                conditions = () if plain else opened.read_query(query).conditions
                least = min_score is not None or min_share is not None
                why = _why_no_match(opened, query, expression, conditions, least)
            click.echo(f"coil: no hits: {why}", err=True)
        named = query.strip()
        if named and named in opened and all(hit.doc_id != named for hit in answer.hits):
            click.echo(f"coil: {_tell_id(index, named)}", err=True)
        if answer.sorted_best is not None:
            click.echo(
                f"coil: sorted only the best {answer.sorted_best:,} hits by {paging.field}; "
                "more documents match: add a filter, or put + before a word that must be in the text",
                err=True,
            )
        elif sort and answer.hits and not (plain or opened.read_query(query).conditions or min_share):
            click.echo(
                f"coil: sorted by {paging.field}, not by score; "
                "to keep only documents with a word, put + before it",
                err=True,
            )
        for suggestion in opened.suggest(query, plain):
            click.echo(
                f"coil: no document contains {suggestion.word!r}; did you mean {suggestion.suggestion!r}?",
                err=True,
            )
        if answer.stats.query_dropped:
            dropped = how_many(answer.stats.query_dropped, "token")
            click.echo(
                f"coil: the query is too long for the model: the last {dropped} were ignored", err=True
            )
        for hit in answer.hits:
            click.echo(
                json.dumps(_object(hit, by), ensure_ascii=False) if as_json else _line(hit, paging.field)
            )
        if stats:
            click.echo(json.dumps(asdict(answer.stats)) if as_json else _told(answer.stats), err=True)
        return
    assert run is not None
    check_output(run, [queries, index])
    asked = list(read_queries(queries))
    cost = SearchStats()
    with ProgressBar("searching", "queries", len(asked)) as bar:

        def rows() -> Iterator[tuple[str, list[tuple[str, float]]]]:
            for begin in range(0, len(asked), _AT_ONCE):
                block = asked[begin : begin + _AT_ONCE]
                texts = [q.text for q in block]
                found = opened.answer_many(texts, k, expression, by, min_score, min_share, plain=True)
                for of_query, answer in zip(block, found, strict=True):
                    nonlocal cost
                    cost = cost.plus(answer.stats)
                    yield of_query.query_id, [(hit.doc_id, hit.score) for hit in answer.hits]
                bar.update(len(block))

        lines = write_run(run, rows())
    click.echo(
        f"wrote {how_many(lines, 'hit')} for {how_many(len(asked), 'query')} to {name_output(run)}", err=True
    )
    if stats:
        click.echo(json.dumps(asdict(cost)) if as_json else _told(cost), err=True)


def _why_no_document(opened: Index, query: str, expression: str | None, answer: Answer) -> str | None:
    """Why no document was searched for, or through; None if some were."""
    if not query.strip():
        return "the query is empty"
    if not len(opened):
        return "the index is empty"
    if expression is None or _count_allowed(opened, expression):
        return None
    if answer.unknown_fields:
        return f"{tell_unknown(answer.unknown_fields)}; check the names in the filter"
    return f"no document matches the filter {_shorten(expression)}; change or omit it"


def _why_no_match(
    opened: Index, query: str, expression: str | None, conditions: Sequence[Condition], least: bool
) -> str:
    """Why none of the documents that were searched is a hit."""
    encoder = opened.encoder
    if not (conditions or least):
        [keyed] = encoder.keys.of_texts([query], encoder.config.profile.query_length)
        if not any(keyed.keys):
            return "the query has only words that are not indexed, such as 'the'; add another word"
    reasons = [f"matches {' '.join(map(str, conditions))}"] if conditions else []
    reasons += ["reaches --min-score or --min-share"] if least else []
    reason = " and ".join(reasons) or "contains a word of the query"
    if expression is None:
        return f"no document {reason}"
    allowed = f"those that match the filter ({_count_allowed(opened, expression):,})"
    return f"no document among {allowed} {reason}; change the filter or the query"


def _count_allowed(opened: Index, expression: str) -> int:
    with opened.held() as snapshot:
        return len(snapshot.select(expression))


def _tell_id(index: Path, doc_id: str) -> str:
    """How to see a document, if a query is its id."""
    quoted = doc_id.replace("\\", "\\\\").replace('"', '\\"')
    command = shlex.join(["coil", "search", str(index), "--filter", f'id = "{quoted}"', "--", doc_id])
    return f"{_shorten(doc_id)!r} is the id of a document, but ids are not searched; to see it: {command}"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _told(stats: SearchStats) -> str:
    """The cost of a search, as text."""
    lines = [
        f"mentions    {stats.mentions_scored:,} scored, {stats.mentions_skipped:,} skipped",
        f"sentences   {stats.sentences_scored:,} scored, {stats.sentences_skipped:,} skipped"
        + (f" ({stats.heads_scored:,} heads read)" if stats.heads_scored else ""),
        "time        "
        + (f"filter {stats.filter_ms:.1f} ms, " if stats.filter_ms else "")
        + f"encode {stats.encode_ms:.1f} ms, score {stats.score_ms:.1f} ms, fetch {stats.fetch_ms:.1f} ms",
        f"exact in    {stats.exact_in}"
        + (f", {stats.rescored:,} rows scored again" if stats.rescored else ""),
    ]
    return "\n".join(lines)


def _object(hit: Hit, by: By) -> dict[str, Any]:
    """A hit as a JSON object."""
    return {
        "rank": hit.rank,
        "doc_id": hit.doc_id,
        "score": hit.score,
        "share": hit.share,
        "by": by,
        "text": hit.text,
        "fields": hit.fields,
        "chunk": hit.chunk,
        "context": hit.context,
        "duplicates": hit.duplicates,
    }


def _line(hit: Hit, sorted_by: str | None) -> str:
    start, end = skip_front_matter(hit.doc_id, hit.text, hit.chunk)
    text = printable(" ".join(hit.text[start:end].split()))
    if hit.chunk[0] > 0 and (context := hit.context):  # the first chunk starts with its own title
        text = f"{printable(context)}: {text}"
    shown = f"{text[:100]}{'…' if len(text) > 100 else ''}"
    share = f"{show_share(hit.share):>5} {bar(hit.share or 0.0, BAR_WIDTH)}"
    folded = f" (+{how_many(len(hit.duplicates), 'duplicate')})" if hit.duplicates else ""
    value = (
        "" if sorted_by is None else f"  {sorted_by}: {printable(str(_value(hit.fields, sorted_by)))[:40]}"
    )
    return f"{hit.rank:>3}  {hit.score:8.3f}  {share}  {printable(hit.doc_id)}{folded}{value}  {shown}"


def _value(fields: Mapping[str, Any], name: str) -> Any:
    """A field, which may be nested: `author.name`."""
    if name in fields:
        return fields[name]
    first, _, rest = name.partition(".")
    inner = fields.get(first)
    return _value(inner, rest) if rest and isinstance(inner, Mapping) else "–"


def show_share(share: float | None) -> str:
    """A share in percent; empty if there is none."""
    return "" if share is None else f"{share:.0%}"
