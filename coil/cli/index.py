"""`coil index`: builds an index from a corpus."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coil.cli.columns import column_options
from coil.cli.progress import document_bar, tell_share
from coil.cli.sharding import Sharded, build_sharded, ray_options
from coil.errors import DuplicateId, IndexLocked, InputError, how_many, require
from coil.indexes.building import check_build, open_build
from coil.indexes.index import tell_left_out
from coil.progress import ProgressBar, tell_size, tell_time
from coil.storage.memory import default_budget, longest_line, parse_size
from coil.texts.corpora import Documents, read_documents
from coil.texts.values import EmptyDocuments

if TYPE_CHECKING:
    from coil.indexes.forecast import Forecast

_SLOWED = 1.25  # other programs are mentioned from this factor on
COMMIT_EVERY = 16_384  # documents; a kill loses at most these, about a minute of work on a laptop


@click.command("index")
@click.argument("corpus", nargs=-1, required=True)
@click.option(
    "--out", "out_name", required=True, type=click.Path(),
    help="Index to create, NAME.coil; with --ray a folder that all nodes share, or a URL for fsspec.",
)  # fmt: skip
@click.option("--model", metavar="M", help="A model folder, or an installed package that contains one.")
@click.option(
    "--precision", type=click.Choice(["int8", "fp16", "fp32", "int8+fp16", "int8+fp32"]),
    help="Precision of stored vectors; + adds a precise copy that determines the ranking.  [default: int8]",
)  # fmt: skip
@click.option(
    "--long", type=click.Choice(["chunk", "truncate"]),
    help="Split documents that are too long for the model into chunks, or truncate them. "
    "[default: chunk]",
)  # fmt: skip
@click.option(
    "--on-duplicate", type=click.Choice(["error", "update", "skip"]),
    help="What to do with a duplicate id.  [default: error]",
)  # fmt: skip
@click.option(
    "--memory", metavar="SIZE",
    help="Memory limit of the whole process, such as 512M or 4G; a line is limited to 1/32 of it. "
    "[default: 2G, or half of the machine's memory if that is less]",
)  # fmt: skip
@column_options
@click.option("--resume", is_flag=True, help="Continue an interrupted build.")
@click.option(
    "--watch", is_flag=True,
    help="Keep the index in sync with the files until Ctrl-C; the index may already exist.",
)  # fmt: skip
@ray_options
@click.option(
    "--dry-run", is_flag=True, help="Read the corpus, report errors, estimate size and time, write nothing."
)
def command(
    corpus: tuple[str, ...],
    out_name: str,
    model: str | None,
    precision: Any,
    long: Any,
    on_duplicate: Any,
    memory: str | None,
    id_column: str | None,
    text_column: tuple[str, ...],
    title_column: str | None,
    resume: bool,
    watch: bool,
    ray: str | None,
    shards: int | None,
    actors: tuple[int, int] | None,
    gpus_per_actor: float,
    dry_run: bool,
) -> None:
    """Build an index from files of records (.jsonl, .tsv, .csv, .parquet), text files, folders, or stdin (-).

    A text file is one document: .txt, .md, .rst, .html, source code, and .pdf and .docx with the extras pdf
    and docx. Its id is the file name or, in a folder, the path within the folder; files of other types in a
    folder are skipped and counted. A folder with a corpus.jsonl is read as a BEIR collection.

    The first line of a .tsv is a header if it starts with an id column and also has a text column, such as
    id<TAB>text<TAB>year; other columns become fields. Without a header, a line is id<TAB>text, and everything
    after the first tab is text. A .csv always has a header; its cells are separated by commas or, if the
    header has none, by semicolons or tabs.

    The id is the first of _id, id, doc_id, docno and pid. The text consists of title, text, contents and
    body, where present. --id-column, --text-column and --title-column name other columns or JSON keys;
    a .tsv must then have a header.

    If a build is killed or interrupted, continue it with --resume and the same corpus. Documents that are
    already indexed are read again but not encoded again; if they have changed, the build stops with an error.

    --watch (requires the watch extra) builds the index, or brings it up to date, and then follows the files:
    new ones are added, changed ones updated and deleted ones removed. Documents from other sources are kept;
    with --on-duplicate update, a file replaces such a document if it has the same id.

    --ray (requires the ray extra) builds on a Ray cluster: its workers encode, and the result is --shards
    indexes in one folder, which `coil serve --ray` serves as one. Workers and nodes that die are replaced; if
    this command dies, continue with --resume.

    \b
      coil index notes/ --out notes.coil
      coil index notes/ --out notes.coil --watch
      coil index README.md CHANGES.md --out readme.coil
      coil index faq.csv --out faq.coil --id-column url --text-column question --text-column answer
      coil index passages.tsv.gz --out passages.coil --dry-run
      coil index passages.tsv.gz --out passages.coil --memory 1G
      coil index passages.tsv.gz --out passages.coil --resume
      zcat dump.jsonl.gz | coil index - --out dump.coil
      coil index passages.tsv.gz --out passages.shards --ray local --shards 4
      coil index /share/passages.tsv.gz --out s3://bucket/passages.shards --ray 10.0.0.1:6379 --shards 16 \\
                 --actors 8:64
    """
    began = time.monotonic()
    budget = parse_size(memory) if memory is not None else None
    # Before anything is created: a wrong path must not leave an empty index behind.
    documents = read_documents(
        *corpus, id_column=id_column, text_column=text_column, title_column=title_column
    )
    columns = documents.columns
    documents.gauge.longest = longest_line(budget or default_budget())
    if ray is None and (shards is not None or actors is not None or gpus_per_actor):
        raise click.UsageError("--shards, --actors and --gpus-per-actor require --ray.")
    if ray is not None and not dry_run:
        if watch:
            raise click.UsageError("--watch cannot be combined with --ray.")
        asked = Sharded(out_name, ray, shards, actors, gpus_per_actor, resume)
        build_sharded(documents, corpus, asked, model, precision, long, on_duplicate)
        return
    out = Path(out_name)
    if watch:
        _watch(documents, out, model, precision, long, on_duplicate, budget, resume or dry_run)
        return
    if dry_run:
        before = check_build(out, model, precision, long, on_duplicate, resume, columns)
        documents.columns = before.columns
        _predict(documents, model, precision or "int8", long or "chunk", on_duplicate or "error")
        return
    index, before = open_build(
        out, model, precision, long, on_duplicate, resume, memory=budget, columns=columns
    )
    documents.columns = before.columns
    if before.finished:
        click.echo(
            f"{out} is already finished ({how_many(len(index), 'document')}); nothing to resume", err=True
        )
        return
    if before.documents:
        click.echo(
            f"resuming after {how_many(before.documents, 'document')}, which are read again first", err=True
        )
    found: list[EmptyDocuments] = []
    try:
        with document_bar(documents.total_bytes, "indexing", before.documents) as encoded:
            added = index.build(documents, before.on_duplicate, encoded, COMMIT_EVERY, found.append)
        if not len(index):
            total = sum(empty.total for empty in found)
            what = f"only {how_many(total, 'empty document')}" if total else "no documents"
            raise InputError(f"{' '.join(corpus)} contains {what}", "check the path and the format")
    except IndexLocked:
        raise  # another process is writing
    except BaseException as error:
        kept = len(index)
        fresh = not kept and not before.documents and not resume
        if fresh and index.discard_if_empty():  # so that another attempt can start afresh
            if isinstance(error, KeyboardInterrupt):
                error.args = ("no document had been encoded yet, so nothing was kept",)
        elif isinstance(error, KeyboardInterrupt):
            kept_there = f"{how_many(kept, 'document')} kept in {out}"
            error.args = (f"{kept_there}; to continue, run the same command with --resume",)
        elif isinstance(error, DuplicateId):
            error.remedy = (
                f"{how_many(kept, 'document')} kept in {out}: continue with --resume and --on-duplicate "
                "update or skip, or give each document its own id and continue with --resume"
            )
        raise
    for empty in found:
        click.echo(f"coil: {tell_left_out(empty)}", err=True)
    facts = index.inspect()
    cut = f", {facts.truncated_documents:,} truncated" if facts.truncated_documents else ""
    click.echo(
        f"{how_many(added, 'document')} added in {tell_time(time.monotonic() - began)}{cut}; {out} has "
        f"{facts.documents:,} with {how_many(facts.mentions, 'mention')} in "
        f"{tell_size(facts.bytes_lists + facts.bytes_documents)}",
        err=True,
    )


def _watch(
    documents: Documents,
    out: Path,
    model: str | None,
    precision: Any,
    long: Any,
    on_duplicate: Any,
    memory: int | None,
    is_contradicted: bool,
) -> None:
    from coil.cli.watching import follow, open_watched
    from coil.indexes.watching import Watch

    if is_contradicted:
        raise click.UsageError("--watch resumes by itself and cannot be combined with --resume or --dry-run.")
    if not documents.paths:
        raise click.UsageError("--watch requires files or folders.")
    require("watchfiles", "watch")
    index, is_new = open_watched(out, model, precision, long, memory)
    watch = Watch(index, documents.paths, documents.columns, on_duplicate, documents.gauge.longest)
    follow(watch, index, out, is_new)


def _predict(documents: Documents, model: str | None, precision: Any, long: Any, on_duplicate: Any) -> None:
    from coil.indexes.forecast import forecast
    from coil.vectors.onnx_encoder import OnnxEncoder

    encoder = OnnxEncoder(model)
    with ProgressBar("reading", "documents") as bar:
        expected = forecast(documents, encoder, precision, long, on_duplicate=on_duplicate, read=bar.update)
    click.echo(
        f"{how_many(expected.documents, 'document')}, about {how_many(expected.mentions, 'mention')}\n"
        f"size: about {tell_size(expected.bytes_lists + expected.bytes_documents)} "
        f"(lists {tell_size(expected.bytes_lists)}, documents {tell_size(expected.bytes_documents)})\n"
        f"time: {tell_times(expected)}\n"
        + (
            f"{how_many(expected.empty, 'document')} without text would be skipped\n"
            if expected.empty
            else ""
        )
        + f"This is an estimate: all documents were read, and a random sample of {expected.sampled:,} was "
        f"indexed ({tell_share(expected.sampled_share)} of the text). Nothing was written."
    )


def tell_times(expected: Forecast) -> str:
    """One time if the sample had the machine for itself, otherwise the times without and with the others."""
    cpu = f"({tell_time(expected.cpu_seconds)} of CPU time)"
    if expected.seconds < _SLOWED * expected.seconds_alone:
        return f"about {tell_time(expected.seconds)} on this machine when it is otherwise idle {cpu}"
    return (
        f"about {tell_time(expected.seconds_alone)} on this machine when it is otherwise idle, "
        f"{tell_time(expected.seconds)} if other programs stay as busy as now {cpu}"
    )
