"""`coil index --watch`: keeps an index in sync with its files until interrupted."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from coil.cli.progress import document_bar
from coil.errors import IndexLocked, OptionMismatch, how_many
from coil.indexes.index import Index
from coil.indexes.opening import check_path, create, is_index, open_index
from coil.indexes.watching import Round, Watch, root_of
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.progress import tell_time
from coil.texts.events import Events
from coil.vectors.onnx_encoder import OnnxEncoder

_SETTLING = 0.3  # seconds between two checks of files that are changing
_IDLE = 1.0  # seconds between two checks for replaced folders
_LOCKED = 0.5  # seconds between attempts while another process writes
_UNHEARD = 2.0  # seconds between two checks if the system reports no changes


def open_watched(
    out: Path, model: str | None, precision: Precision | None, long: Long | None, memory: int | None
) -> tuple[Index, bool]:
    """The index to keep in sync, and whether it was just created."""
    if not is_index(check_path(out)):
        return create(out, model, precision or "int8", long or "chunk", memory=memory), True
    index = open_index(out, memory=memory)
    if model is not None:
        index.use(OnnxEncoder(model))
    for name, given in (("precision", precision), ("long", long)):
        made_with = index.settings()[name]
        if given is not None and given != made_with:
            raise OptionMismatch(f"{out} was built with --{name} {made_with}, not {given}", f"omit --{name}")
    return index, False


def follow(watch: Watch, index: Index, out: Path, is_new: bool) -> None:
    """Bring the index up to date and keep it up to date until Ctrl-C or SIGTERM, which are re-raised."""
    is_first, is_locked = True, False
    with _Listening(watch.sources, out.absolute()) as listening:
        try:
            while True:
                began = time.monotonic()
                try:
                    done = _first_round(watch) if is_first else watch.round()
                except IndexLocked as error:
                    if not is_locked:
                        click.echo(f"coil: {error.reason}; waiting", err=True)
                    is_locked = True
                    time.sleep(_LOCKED)
                    continue
                is_locked = False
                if done.has_changed:
                    click.echo(f"{tell_round(done)} in {tell_time(time.monotonic() - began)}", err=True)
                if is_first:
                    click.echo(
                        f"{out} has {how_many(len(index), 'document')}; watching "
                        f"{', '.join(map(str, watch.sources))} (Ctrl-C to stop)",
                        err=True,
                    )
                is_first = False
                if done.is_due:
                    time.sleep(_SETTLING)
                else:
                    listening.wait()
        except BaseException:
            if is_new and not len(index):
                index.discard_if_empty()
            raise


class _Listening:
    """Waits until the files may have changed."""

    def __init__(self, sources: Sequence[Path], ignored: Path) -> None:
        self._sources, self._ignored = sources, ignored
        self._stack = ExitStack()

    def __enter__(self) -> _Listening:
        self._listen()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _listen(self) -> None:
        self._roots = self._find_roots()
        there = [source for source in self._sources if root_of(source) != (0, 0)]
        self._events = self._stack.enter_context(Events(there, self._ignored))
        self._is_told = False

    def _listen_again(self) -> None:
        self._stack.close()
        self._listen()  # also wakes the waiting loop

    def _find_roots(self) -> list[tuple[int, int]]:
        """The watched folders; for a file, the folder that contains it."""
        return [root_of(path) for source in self._sources for path in (source, source.parent)]

    def wait(self) -> None:
        """Wait for an event or a replaced folder; if the system reports no events, wait a fixed time."""
        while not self._events.wait(_IDLE):
            if self._roots != self._find_roots():
                self._listen_again()
            elif self._events.failure is not None:
                time.sleep(_UNHEARD)
                return
        if self._events.is_lost:
            self._listen_again()
        if self._events.failure is not None and not self._is_told:
            self._is_told = True
            click.echo(
                f"coil: the system reports no changes ({self._events.failure}); polling every few seconds",
                err=True,
            )


def _first_round(watch: Watch) -> Round:
    with document_bar(watch.total_bytes, "indexing") as encoded:
        return watch.round(encoded)


def tell_round(done: Round) -> str:
    """A summary of a round."""
    return f"{done.added:,} added, {done.updated:,} updated, {done.removed:,} removed"
