"""Following the index at a place: when another index replaces it, that one is deployed and takes over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from coil.cluster.deploying import AppName, deploy, is_deployed, open_deployed, undeploy
from coil.errors import CoilError, reason_of
from coil.shards.index import ShardedIndex
from coil.shards.places import Place, read_whole
from coil.vectors.encoder import Encoder

_log = logging.getLogger("coil.service")
LOOK_SECONDS = 2.0
DRAIN_SECONDS = 60.0  # during which running requests can still use an index that was replaced


class Deployed:
    """An index that this process has deployed, and that follows its place.

    `find` gives the place; it is looked up again each time, because a link may have changed its target.
    """

    def __init__(
        self,
        name: str,
        find: Callable[[], Place],
        replicas: int,
        partial: bool = False,
        encoder: Callable[[], Encoder] | None = None,
        model: str | None = None,
        threads: int = 1,
        drain: float = DRAIN_SECONDS,
    ) -> None:
        self._name, self._find, self._replicas, self._partial = name, find, replicas, partial
        self._encoder, self._model, self._threads, self._drain = encoder, model, threads, drain
        self._made: list[AppName] = []  # by this process, which stops them
        self._told = ""
        self._over = threading.Event()
        self._leaving: list[tuple[float, AppName]] = []
        self._app, self.index = self._deploy()
        self._thread: threading.Thread | None = None

    def _deploy(self) -> tuple[AppName, ShardedIndex]:
        app, is_new = deploy(self._name, self._find(), self._replicas, self._encoder, self._threads)
        if is_new:
            self._made.append(app)
        try:
            index = open_deployed(app, self._partial, self._model)
            len(index)  # every shard answers, or as many as required
        except CoilError:
            if is_new:
                self._made.remove(app)
                undeploy(app)
            raise
        return app, index

    def follow(self, take_over: Callable[[ShardedIndex], object]) -> None:
        """Periodically look for another index at the place, in a thread; `take_over` gets it when ready."""
        self._thread = threading.Thread(target=self._follow, args=(take_over,), name="follow", daemon=True)
        self._thread.start()

    def _follow(self, take_over: Callable[[ShardedIndex], object]) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                self._look(take_over)
                self._told = ""
            except Exception as error:  # the older index keeps answering
                reason = reason_of(error)
                if reason != self._told:
                    _log.error("cannot take over", extra={"index": self._name, "reason": reason})
                    self._told = reason

    def _look(self, take_over: Callable[[ShardedIndex], object]) -> None:
        now = time.monotonic()
        for _, app in [one for one in self._leaving if one[0] < now]:
            undeploy(app)
        self._leaving = [one for one in self._leaving if one[0] >= now]
        manifest = read_whole(self._find())
        if manifest.build is not None or (manifest.whole == self._app.whole and is_deployed(self._app)):
            return
        older = self._app
        self._app, self.index = self._deploy()
        take_over(self.index)
        if older in self._made:
            self._made.remove(older)
            self._leaving.append((now + self._drain, older))
        _log.info("took over", extra={"index": self._name, "whole": self._app.whole})

    def close(self) -> None:
        """Stop serving what this process has deployed."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        for app in [*self._made, *(app for _, app in self._leaving)]:
            with suppress(Exception):  # the cluster may be gone
                undeploy(app)
