"""`coil export-vectors`: export an index to Anserini's JSON vectors."""

from __future__ import annotations

from pathlib import Path

import click

from coil.adapters.anserini import LARGEST_SCALE, SCALE, write_queries, write_vectors
from coil.errors import how_many
from coil.indexes.opening import open_index
from coil.progress import ProgressBar
from coil.texts.queries import read_queries
from coil.texts.writing import is_standard_output, name_output


@click.command("export-vectors")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The .jsonl file to write.")
@click.option("--queries", help="Also export the queries in this file.")
@click.option(
    "--queries-out", type=click.Path(path_type=Path), help="With --queries: the .tsv file to write."
)
@click.option(
    "--scale", type=click.IntRange(1, LARGEST_SCALE), default=SCALE, show_default=True,
    help="Weights are multiplied by this and rounded to integers.",
)  # fmt: skip
@click.option("--contents/--no-contents", default=True, show_default=True, help="Include the texts.")
@click.option("--model", metavar="FOLDER", help="The index's model folder, if it has moved.")
def command(
    index: Path,
    out: Path,
    queries: str | None,
    queries_out: Path | None,
    scale: int,
    contents: bool,
    model: str | None,
) -> None:
    """Export an index whose token vectors have width 1 (n_t = 1) to Anserini's JSON vectors.

    Each line is a text: {"id": ..., "contents": ..., "vector": {term: weight}}. The term "bank" has the
    largest value of the word piece in the text, "-bank" the negated smallest; weights that are not positive
    are omitted. The sum of products of query and text weights, divided by the square of --scale, is the score
    of `coil search --by tokens`, up to rounding. The sentence vector is not exported. The file is read back
    and compared with the index. Long documents have one line per chunk: ID#0, ID#1, and so on.

    \b
      mkdir vectors
      coil export-vectors marco.coil --out vectors/marco.jsonl --queries dev.tsv --queries-out dev.impact.tsv
      bin/run.sh io.anserini.index.IndexCollection -collection JsonVectorCollection -input vectors \\
        -index lucene -generator DefaultLuceneDocumentGenerator -impact -pretokenized
      bin/run.sh io.anserini.search.SearchCollection -index lucene -topics dev.impact.tsv \\
        -topicReader TsvInt -impact -pretokenized -output run.trec
    """
    if (queries is None) != (queries_out is None):
        raise click.UsageError("--queries requires --queries-out, and vice versa.")
    opened = open_index(index, model=model)
    with ProgressBar("writing", "texts", len(opened)) as bar:
        count = write_vectors(opened, out, scale, contents, bar.update)
    click.echo(f"{how_many(count, 'text')} in {name_output(out)}", err=is_standard_output(out))
    if queries is not None and queries_out is not None:
        asked = list(read_queries(queries))
        written = write_queries(opened, asked, queries_out, scale)
        if written < len(asked):
            click.echo(f"coil: {how_many(len(asked) - written, 'query')} without terms skipped", err=True)
        told = f"{how_many(written, 'query')} in {name_output(queries_out)}"
        click.echo(told, err=is_standard_output(out) or is_standard_output(queries_out))
