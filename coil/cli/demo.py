"""`coil demo`: searches the documentation of the running Python."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

import click

from coil.cli.search import show_share
from coil.cli.serve import check_installed, serve
from coil.demo.demo import INDEX_FOLDER, QUESTIONS, Prepared, prepare, summary_span
from coil.demo.standard_library import read_standard_library
from coil.errors import OutputError
from coil.explanations.explainer import Explainer
from coil.explanations.explanation import Explanation
from coil.explanations.table import Shade, format_table
from coil.hits.hit import Hit
from coil.progress import ProgressBar
from coil.service.limits import ServiceOptions
from coil.texts.values import Document
from coil.vectors.encoder import Encoder

# Backgrounds from the 256-colour palette, from pale to strong; black text is readable on all of them.
SHADES = (230, 229, 228, 221, 214)
ID_WIDTH = 36


@click.command("demo")
@click.option(
    "--question", "questions", multiple=True, metavar="TEXT", help="Question to ask; may be repeated."
)
@click.option(
    "-k", type=click.IntRange(min=1), default=3, show_default=True, help="Number of hits per question."
)
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for the index, instead of your cache folder.",
)
@click.option("--model", metavar="M", help="A model folder, or an installed package that contains one.")
@click.option("--serve", "and_serve", is_flag=True, help="Open a search page instead.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port for --serve."
)
def command(
    questions: tuple[str, ...], k: int, cache: Path | None, model: str | None, and_serve: bool, port: int
) -> None:
    """Search the documentation of Python's standard library and see why a hit matched.

    Each line is a hit: rank, share, name, first sentence. The share compares the score with that of the
    question's own text. The first run encodes several thousand docstrings and saves the result, which takes a
    minute or two; later runs start immediately.

    \b
      coil demo
      coil demo --question "find all matches of a regular expression" -k 5
      coil demo --serve
    """
    if and_serve:
        check_installed()
    from coil.vectors.onnx_encoder import OnnxEncoder

    folder = cache if cache is not None else default_cache()
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    encoder = OnnxEncoder(model)
    if and_serve:
        serve_demo(encoder, folder, port)
        return
    run_demo(encoder, questions or QUESTIONS, k, folder, shade if colour else None)
    click.echo("\n`coil demo --serve` opens a search page.", err=True)


def serve_demo(
    encoder: Encoder,
    folder: Path,
    port: int,
    read_documents: Callable[[], Sequence[Document]] = read_standard_library,
) -> None:
    """Get the index ready and serve it, with the page."""
    _prepare(encoder, folder, read_documents).index.close()
    serve([folder / INDEX_FOLDER], "127.0.0.1", port, ServiceOptions(), encoder, open_browser=True)


def run_demo(
    encoder: Encoder,
    questions: Sequence[str],
    k: int,
    folder: Path,
    shade: Shade | None = None,
    read_documents: Callable[[], Sequence[Document]] = read_standard_library,
) -> None:
    """Load or build the index, answer the questions, and explain one hit."""
    prepared = _prepare(encoder, folder, read_documents)
    index = prepared.index
    click.echo(f"{len(index):,} entries from the docs of Python {platform.python_version()}")
    answered: tuple[str, Hit] | None = None
    for question in questions:
        hits = index.search(question, k)
        click.echo(f"\n{click.style(question, bold=True) if shade is not None else question}")
        if not hits:
            click.echo("  no hits")
        with index.pinned() as same:
            explainer = Explainer(same.searcher, question)
            for hit in hits:
                click.echo(_hit_line(hit, explainer.explain(hit.doc_id, sentence_parts=False), shade))
        if hits:
            answered = question, hits[0]
    if answered is not None:
        question, hit = answered
        click.echo(f"\nWhy {hit.doc_id}?")
        width = shutil.get_terminal_size((120, 24)).columns
        click.echo(format_table(index.explain(question, hit.doc_id), shade, width))


def _prepare(encoder: Encoder, folder: Path, read_documents: Callable[[], Sequence[Document]]) -> Prepared:
    with ExitStack() as stack:

        def start(total: int) -> Callable[[int], object]:
            click.echo(f"encoding {total:,} entries of the standard library's docs (only once)", err=True)
            return stack.enter_context(ProgressBar("encoding", "entries", total, leave=False)).update

        prepared = prepare(encoder, folder, read_documents, start)
    if prepared.note:
        click.echo(f"note: {prepared.note}", err=True)
    if prepared.reused:
        click.echo(f"using the index saved in {folder} (loaded in {prepared.seconds:.1f} s)", err=True)
    else:
        click.echo(f"read and encoded in {prepared.seconds:.1f} s, saved in {folder}", err=True)
    return prepared


def _hit_line(hit: Hit, explanation: Explanation, shade: Shade | None) -> str:
    """Rank, share, id and the beginning of the docstring, with the matched words shaded."""
    start, end = summary_span(hit.text)
    room = max(30, shutil.get_terminal_size((120, 24)).columns - max(ID_WIDTH, len(hit.doc_id)) - 16)
    cut = end - start > room
    end = min(end, start + room - cut)
    weights = _weights(len(hit.text), explanation)
    # Replace each line break with one space, so that spans stay valid.
    summary = _shaded(hit.text[start:end].replace("\n", " "), weights[start:end], shade) + "…" * cut
    name = _shaded_id(hit, weights, shade)
    return f"  {hit.rank:>2}  {show_share(hit.share):>5}  {name}  {summary}"


def _shaded_id(hit: Hit, weights: Sequence[float], shade: Shade | None) -> str:
    """The id, shaded as in the signature, which also contains it."""
    place = hit.text.find(hit.doc_id)
    padding = " " * (ID_WIDTH - len(hit.doc_id))
    if place < 0:
        return hit.doc_id + padding
    return _shaded(hit.doc_id, weights[place : place + len(hit.doc_id)], shade) + padding


def _weights(characters: int, explanation: Explanation) -> list[float]:
    """How strongly to shade each character of the document, from 0 to 1: by the contribution of its word, and
    by how well this mention fits compared with the best one."""
    weights = [0.0] * characters
    most = max((match.contribution for match in explanation.matches), default=0.0)
    for match in explanation.matches:
        mentions = [(match.document_span, match.fit), *((m.span, m.fit) for m in match.runner_ups)]
        for (start, end), fit in mentions:
            if match.contribution > 0.0 and fit > 0.0:
                shade = match.contribution / most * fit / match.fit
                weights[start:end] = [max(weight, shade) for weight in weights[start:end]]
    return weights


def _shaded(text: str, weights: Sequence[float], shade: Shade | None) -> str:
    if shade is None:
        return text
    parts = []
    for weight, run in groupby(zip(text, weights, strict=True), key=lambda pair: pair[1]):
        part = "".join(char for char, _ in run)
        parts.append(shade(part, weight) if weight else part)
    return "".join(parts)


def shade(text: str, share: float) -> str:
    """Black text on a background that is stronger for a larger share, from 0 to 1."""
    level = min(int(max(share, 0.0) * len(SHADES)), len(SHADES) - 1)
    return click.style(text, fg="black", bg=SHADES[level])


def default_cache() -> Path:
    """The cache folder of this system."""
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OutputError("no home folder was found to save the demo in", "use `--cache DIR`") from error
    if sys.platform == "darwin":
        base = home / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        named = Path(os.environ.get("XDG_CACHE_HOME") or ".")
        base = named if named.is_absolute() else home / ".cache"  # the XDG standard ignores relative paths
    return base / "coil" / "demo"
