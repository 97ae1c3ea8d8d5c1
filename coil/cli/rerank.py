"""`coil rerank`: reranks the candidates of another system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from coil.cli.columns import column_options
from coil.cli.search import by_option
from coil.errors import InputError, how_many
from coil.hits.reranker import AT_ONCE, rerank
from coil.indexes.opening import open_index
from coil.progress import ProgressBar
from coil.texts.corpora import read_documents
from coil.texts.queries import read_queries
from coil.texts.runs import read_run, write_run
from coil.texts.writing import check_output, name_output
from coil.tokens.profile import By
from coil.vectors.onnx_encoder import OnnxEncoder

Answers = Iterator[tuple[str, list[tuple[str, float]]]]
SHOWN = 3  # ids named in a message


@click.command("rerank")
@click.option("--corpus", multiple=True, help="Corpus with the texts of the candidates; may be repeated.")
@click.option(
    "--index",
    type=click.Path(path_type=Path),
    help="Index with the candidates, instead of --corpus.",
)
@column_options
@click.option("--queries", required=True, help="File with the queries: .tsv, .jsonl, a BEIR folder …")
@click.option("--run", required=True, help="TREC run with the candidates.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="TREC run to write; - is standard output."
)
@click.option(
    "-k", "--depth", type=click.IntRange(min=1),
    help="Rerank only the first N candidates of each query and drop the others.  [default: all]",
)  # fmt: skip
@by_option
@click.option(
    "--model",
    metavar="M",
    help="A model folder, or an installed package that contains one; with --index: the model's new location.",
)
@click.option(
    "--precision", type=click.Choice(["int8", "fp16", "fp32"]), default="int8", show_default=True,
    help="Precision of the vectors, as in `coil index`, so that the scores are the same.",
)  # fmt: skip
@click.option(
    "--long", type=click.Choice(["chunk", "truncate"]), default="chunk", show_default=True,
    help="Split documents that are too long for the model into chunks, or truncate them.",
)  # fmt: skip
@click.pass_context
def command(
    ctx: click.Context,
    corpus: tuple[str, ...],
    index: Path | None,
    id_column: str | None,
    text_column: tuple[str, ...],
    title_column: str | None,
    queries: str,
    run: str,
    out: Path,
    depth: int | None,
    by: By,
    model: str | None,
    precision: Any,
    long: Any,
) -> None:
    """Rerank another system's candidates: read a TREC run, write a TREC run with new scores.

    With --corpus, the corpus is read once. The words of all its texts are counted, because rare words weigh
    more, but only the candidates are encoded. With --index, only the queries are encoded; the index
    determines the model, the precision and how long documents are handled. Both give the same scores as
    `coil search` with the same --by.

    Every candidate is returned. Without a sentence part, one that shares no word with the query scores 0.
    Ties are in corpus order. Candidates that are not in the corpus or the index are skipped and counted; a
    query of the run that is not in --queries is an error. The column options apply to --corpus only.

    \b
      coil rerank --corpus scifact/ --queries scifact/ --run bm25.trec --out coil.trec
      coil rerank --index scifact.coil --queries scifact/ --run bm25.trec -k 100 --out coil.trec
      coil rerank --index scifact.coil --queries scifact/ --run bm25.trec --by dense --out dense.trec
      coil rerank --corpus faq.csv --id-column url --queries q.tsv --run a.trec --out b.trec
      coil evaluate scifact/ bm25.trec coil.trec
    """
    if bool(corpus) == (index is not None):
        raise click.UsageError("Pass --corpus CORPUS or --index INDEX.")
    if index is not None:
        for name in ("precision", "long", "id_column", "text_column", "title_column"):
            if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
                option = name.replace("_", "-")
                raise click.UsageError(f"--{option} requires --corpus; an index has its own setting.")
    check_output(out, [*corpus, queries, run, index])
    documents = read_documents(
        *corpus, id_column=id_column, text_column=text_column, title_column=title_column
    )  # before the long work, so that a wrong path is reported immediately
    candidates = {query_id: list(found)[:depth] for query_id, found in read_run(run).items()}
    if not candidates:
        raise InputError(
            f"{run} contains no candidates", "pass a TREC run: `query Q0 document rank score tag`"
        )
    texts = {q.query_id: q.text for q in read_queries(queries) if q.query_id in candidates}
    if len(texts) < len(candidates):
        without = [query_id for query_id in candidates if query_id not in texts]
        raise InputError(
            f"{_count(without, 'query', 'queries')} in {run} but not in {queries}: {_some(without)}",
            "pass the queries file that the run was made with",
        )
    missing: list[str] = []

    def from_corpus() -> Answers:
        encoder = OnnxEncoder(model)
        distinct = len({doc_id for of_query in candidates.values() for doc_id in of_query})
        pairs = sum(len(of_query) for of_query in candidates.values())
        with (
            ProgressBar("encoding", "documents", distinct) as encoding,
            ProgressBar("scoring", "candidates", pairs) as scoring,
        ):
            found = rerank(
                encoder, texts, candidates, documents, precision, long, by,
                encoded=encoding.update, scored=scoring.update,
            )  # fmt: skip
        missing.extend(found.missing)
        _check(len(missing) < distinct, missing, " ".join(corpus))
        yield from found.rows.items()

    def from_index(folder: Path) -> Answers:
        opened = open_index(folder, model=model)
        absent: dict[str, None] = {}  # in order, each once
        present = 0
        asked = list(candidates)
        with ProgressBar("scoring", "queries", len(asked)) as bar:
            for begin in range(0, len(asked), AT_ONCE):
                block = asked[begin : begin + AT_ONCE]
                there = []
                for query_id in block:
                    there.append([doc_id for doc_id in candidates[query_id] if opened.has(doc_id)])
                    known = set(there[-1])
                    absent.update((doc_id, None) for doc_id in candidates[query_id] if doc_id not in known)
                    present += len(known)
                found = opened.rerank_many([texts[query_id] for query_id in block], there, by)
                for query_id, hits in zip(block, found, strict=True):
                    yield query_id, [(hit.doc_id, hit.score) for hit in hits]
                bar.update(len(block))
        missing.extend(absent)
        _check(present > 0, missing, str(folder))

    lines = write_run(out, from_corpus() if index is None else from_index(index))
    if missing:
        where = index if index is not None else " ".join(corpus)
        click.echo(
            f"warning: {_count(missing, 'candidate', 'candidates')} not in {where}, or without text, and "
            f"skipped: {_some(missing)}; check that the run was made from the same documents",
            err=True,
        )
    done = f"{how_many(lines, 'candidate')} for {how_many(len(candidates), 'query')}"
    click.echo(f"wrote {done} to {name_output(out)}", err=True)


def _check(found: bool, missing: Sequence[str], where: str) -> None:
    """If every candidate is unknown, the run was made from another collection."""
    if not found:
        raise InputError(
            f"{where} contains none of the {len(missing):,} candidates, such as {_some(missing)}",
            "pass the corpus or index that the run was made from; ids are case-sensitive",
        )


def _count(ids: Sequence[str], one: str, many: str) -> str:
    return f"{len(ids):,} {one if len(ids) == 1 else many} {'is' if len(ids) == 1 else 'are'}"


def _some(ids: Sequence[str]) -> str:
    shown = ", ".join(repr(doc_id if len(doc_id) <= 80 else doc_id[:77] + "...") for doc_id in ids[:SHOWN])
    return shown + (" …" if len(ids) > SHOWN else "")
