"""`coil index`: a pile of text in, an index out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from coil.cli.columns import column_options
from coil.cli.progress import document_bar, tell_size, tell_time
from coil.errors import DuplicateId, IndexLocked, InputError, how_many, require
from coil.indexes.building import check_build, open_build
from coil.indexes.index import tell_left_out
from coil.storage.memory import default_budget, longest_line, parse_size
from coil.texts.corpora import Documents, read_documents

COMMIT_EVERY = 16_384  # documents: what a kill costs at most, about a minute of a laptop's work


@click.command("index")
@click.argument("corpus", nargs=-1, required=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The index to create, NAME.coil.")
@click.option("--model", metavar="M", help="A model folder, or an installed package that contains one.")
@click.option(
    "--precision", type=click.Choice(["int8", "fp16", "fp32", "int8+fp16", "int8+fp32"]),
    help="How vectors are stored; with + a second, more precise copy decides the order.  [default: int8]",
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
    help="Memory limit of the whole process, such as 512M or 4G; a line may have at most 1/32 of it. "
    "[default: 2G, or half of the machine's memory if that is less]",
)  # fmt: skip
@column_options
@click.option("--resume", is_flag=True, help="Continue an interrupted build.")
@click.option(
    "--watch", is_flag=True,
    help="Keep the index in step with the files until Ctrl-C; the index may exist already.",
)  # fmt: skip
@click.option(
    "--dry-run", is_flag=True, help="Only read the corpus, and report what a build would take or refuse."
)
def command(
    corpus: tuple[str, ...],
    out: Path,
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
    dry_run: bool,
) -> None:
    """Build an index from files of records (.jsonl, .tsv, .csv, .parquet), folders and files of text, or -.

    A file of text is one document: .txt, .md, .rst, .html, source code, and with the extras pdf and docx .pdf
    and .docx. Its id is its name or, in a folder, its path; a folder's other files are skipped and counted.
    A folder with a corpus.jsonl is read as BEIR.

    The first line of a .tsv is a header if it names an id first and a text somewhere after it, such as
    id<TAB>text<TAB>year; other columns are kept as fields. Without one, a line is id<TAB>text, and all that
    follows the first tab is text, further columns included. A .csv always has a header.

    The id is the first of _id, id, doc_id, docno and pid, the text is title, text, contents and body, those
    that are there; --id-column, --text-column and --title-column name other columns or JSON keys. A .tsv with
    a column that is named has a header.

    A build that was killed or interrupted can be continued with --resume and the same corpus. What was read
    before is read again, but not encoded again; if it has changed, the build stops with an error.

    With --watch (extra watch) the index is built, or brought in step, and then follows the files: what is
    new is added, what has changed is updated, what is gone is removed, and nothing else is touched. Documents
    of other sources stay; --on-duplicate update lets a file replace one of these that has its id.

    \b
      coil index notes/ --out notes.coil
      coil index notes/ --out notes.coil --watch
      coil index README.md CHANGES.md --out readme.coil
      coil index faq.csv --out faq.coil --id-column url --text-column question --text-column answer
      coil index passages.tsv.gz --out passages.coil --dry-run
      coil index passages.tsv.gz --out passages.coil --memory 1G
      coil index passages.tsv.gz --out passages.coil --resume
      zcat dump.jsonl.gz | coil index - --out dump.coil
    """
    began = time.monotonic()
    budget = parse_size(memory) if memory is not None else None
    # Before anything is made: a wrong path must not leave an empty index.
    documents = read_documents(
        *corpus, id_column=id_column, text_column=text_column, title_column=title_column
    )
    columns = documents.columns
    documents.gauge.longest = longest_line(budget or default_budget())
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
        click.echo(f"resuming after {how_many(before.documents, 'document')}", err=True)
    empty: list[str] = []
    try:
        with document_bar(documents, "indexing") as encoded:
            added = index.build(documents, before.on_duplicate, encoded, COMMIT_EVERY, empty.extend)
        if not len(index):
            what = f"nothing but {how_many(len(empty), 'empty document')}" if empty else "no documents"
            raise InputError(f"{' '.join(corpus)} contains {what}", "check the path and the format")
    except IndexLocked:
        raise  # it is another process's
    except BaseException as error:
        kept = len(index)
        fresh = not kept and not before.documents and not resume
        if fresh and index.discard_if_empty():  # so that a second try finds the way free
            if isinstance(error, KeyboardInterrupt):
                click.echo("coil: nothing was encoded yet, so nothing was kept", err=True)
        elif isinstance(error, KeyboardInterrupt):
            click.echo(f"coil: {how_many(kept, 'document')} kept in {out}; continue with --resume", err=True)
        elif isinstance(error, DuplicateId):
            error.remedy = (
                f"{how_many(kept, 'document')} kept in {out}: continue with --resume and --on-duplicate "
                "update or skip, or give each document its own id and continue with --resume"
            )
        raise
    if empty:
        click.echo(f"coil: {tell_left_out(empty)}", err=True)
    facts = index.inspect()
    cut = f", {facts.truncated_documents:,} truncated" if facts.truncated_documents else ""
    click.echo(
        f"{how_many(added, 'document')} added in {tell_time(time.monotonic() - began)}{cut}; {out} holds "
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
        raise click.UsageError("--watch goes on where it stopped; use it without --resume and --dry-run.")
    if not documents.paths:
        raise click.UsageError("--watch needs files or folders.")
    require("watchfiles", "watch")
    index, is_new = open_watched(out, model, precision, long, memory)
    watch = Watch(index, documents.paths, documents.columns, on_duplicate, documents.gauge.longest)
    follow(watch, index, out, is_new)


def _predict(documents: Documents, model: str | None, precision: Any, long: Any, on_duplicate: Any) -> None:
    from coil.indexes.forecast import forecast
    from coil.vectors.onnx_encoder import OnnxEncoder

    encoder = OnnxEncoder(model)
    with tqdm(unit=" documents", desc="reading", disable=None) as bar:
        expected = forecast(documents, encoder, precision, long, on_duplicate=on_duplicate, read=bar.update)
    click.echo(
        f"{how_many(expected.documents, 'document')}, about {how_many(expected.mentions, 'mention')}\n"
        f"size: about {tell_size(expected.bytes_lists + expected.bytes_documents)} "
        f"(lists {tell_size(expected.bytes_lists)}, documents {tell_size(expected.bytes_documents)})\n"
        f"time: about {tell_time(expected.seconds)} on this machine at its current load\n"
        + (
            f"{how_many(expected.empty, 'document')} without text would be skipped\n"
            if expected.empty
            else ""
        )
        + f"This is an estimate: all documents were read, {expected.sampled:,} chosen at random were indexed "
        f"({expected.sampled_share:.1%} of the text). Nothing was written."
    )
