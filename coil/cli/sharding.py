"""`coil index --ray`: builds a sharded index on a Ray cluster."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from tqdm import tqdm

from coil.cli.numbers import FiniteRange
from coil.cli.progress import document_bar
from coil.errors import CoilError, DuplicateId, IndexLocked, InputError, OptionMismatch, how_many, require
from coil.indexes.index import tell_left_out
from coil.indexes.settings import MOST_SHARDS
from coil.progress import tell_time
from coil.texts.corpora import Documents
from coil.texts.opening import STANDARD_INPUT
from coil.texts.values import EmptyDocuments


class ActorRange(click.ParamType[tuple[int, int]]):
    """K, or MIN:MAX."""

    name = "K|MIN:MAX"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """The minimum and maximum number of actors."""
        if isinstance(value, tuple):
            return value
        least, _, most = str(value).partition(":")
        try:
            found = int(least), int(most or least)
        except ValueError:
            found = 0, 0
        if not 1 <= found[0] <= found[1]:
            self.fail(f"{value!r:.40} is not a number of actors; expected K or MIN:MAX, at least 1.")
        return found


def ray_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a build on a cluster."""
    for option in reversed(
        (
            click.option(
                "--ray", metavar="ADDRESS|local",
                help="Build on the Ray cluster whose head node has this address (HOST:PORT or auto), or on "
                "one that is started on this machine.",
            ),
            click.option(
                "--shards", type=click.IntRange(1, MOST_SHARDS), metavar="N",
                help="With --ray: number of shards.  [default: 1]",
            ),
            click.option(
                "--actors", type=ActorRange(),
                help="With --ray: number of encoding processes, or the range within which it varies. "
                "[default: 1 up to one per core of the cluster]",
            ),
            click.option(
                "--gpus-per-actor", type=FiniteRange(min=0), default=0.0, metavar="G",
                help="With --ray: GPUs per encoding process, such as 1 or 0.5; encodes with PyTorch.",
            ),
        )
    ):  # fmt: skip
        command = option(command)
    return command


@dataclass(frozen=True)
class Sharded:
    """The values of --ray and its options."""

    out: str
    address: str
    shards: int | None
    actors: tuple[int, int] | None
    gpus: float
    resume: bool


def build_sharded(
    documents: Documents,
    corpus: Sequence[str],
    asked: Sharded,
    model: str | None,
    precision: Any,
    long: Any,
    on_duplicate: Any,
) -> None:
    """Build a sharded index and report the result."""
    for package in ("ray", "pyarrow", "fsspec"):
        require(package, "ray")
    from coil.cluster.building import BuildReport, ClusterBuild, Workers, start_build
    from coil.cluster.joining import joined
    from coil.shards.places import find_place
    from coil.shards.windows import CorpusFiles

    if STANDARD_INPUT in corpus:
        raise InputError("standard input can be read only once", "pass files with --ray")
    began = time.monotonic()
    place = find_place(asked.out)
    least, most = asked.actors or (1, None)
    workers = Workers(least, most, asked.gpus)
    empty: list[str] = []
    with joined(asked.address) as ray, place.claim() as claim, claim.held():
        manifest, state = start_build(
            place, asked.shards, model, precision, long, on_duplicate, asked.resume, documents.columns,
            gpus=asked.gpus,
        )  # fmt: skip
        columns = state.columns
        files = CorpusFiles(
            tuple(os.path.abspath(path) if os.path.exists(path) else path for path in corpus),
            columns.id, columns.texts or None, columns.title, documents.gauge.longest,
        )  # fmt: skip
        if state.reached.documents:
            click.echo(f"resuming after {how_many(state.reached.documents, 'document')}", err=True)
        try:
            what = f"indexing ({how_many(len(manifest.shards), 'shard')})"
            with document_bar(documents.total_bytes, what, state.reached.documents) as added:
                report = BuildReport(added, lambda text: tqdm.write(f"coil: {text}", file=sys.stderr), empty)
                manifest = ClusterBuild(ray, place, manifest, state, files, workers, report).run()
        except KeyboardInterrupt as error:
            kept = f"what was committed is kept in {asked.out}"
            error.args = (f"{kept}; to continue, run the same command with --resume",)
            raise
        except (IndexLocked, OptionMismatch):
            raise
        except DuplicateId as error:
            error.remedy = (
                f"what was committed is kept in {asked.out}: continue with --resume and --on-duplicate "
                "update or skip, or give each document its own id and continue with --resume"
            )
            raise
        except CoilError as error:
            if "--resume" not in error.remedy:
                kept = "what was committed is kept: continue with --resume"
                error.remedy = f"{error.remedy}; {kept}" if error.remedy else kept
            raise
    if empty:
        click.echo(f"coil: {tell_left_out(EmptyDocuments(empty))}", err=True)
    sizes = [entry.documents for entry in manifest.shards]
    click.echo(
        f"{how_many(sum(sizes), 'document')} in {how_many(len(sizes), 'shard')} of {min(sizes):,} to "
        f"{max(sizes):,}; {asked.out} was built in {tell_time(time.monotonic() - began)}",
        err=True,
    )
