"""Readiness: whether every index is available and intact and has answered a query."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from coil.errors import CoilError, reason_of
from coil.service.problems import PUT_BACK, RESTORE, Problem
from coil.service.readable import Served
from coil.service.workers import SECONDS_TO_END

_log = logging.getLogger("coil.service")


class Readiness:
    """Asks each index a first query, in a thread of its own, so that the first client does not wait for files
    to load."""

    def __init__(self, indexes: Iterable[Served], is_stopping: Callable[[], bool]) -> None:
        self._indexes, self._is_stopping = list(indexes), is_stopping
        # indexes that have not answered a query, and why that failed
        self._cold = {served.name: "" for served in self._indexes}
        self._first = threading.Thread(target=self._warm_up, name="warm-up", daemon=True)
        self._first.start()

    @property
    def is_warming_up(self) -> bool:
        """Whether the first queries are still being asked."""
        return self._first.is_alive()

    def stop(self) -> None:
        """Wait for the query that is being answered."""
        self._first.join(SECONDS_TO_END)

    def check(self) -> None:
        """A Problem names the indexes that cannot be searched or changed, and why."""
        wrong, remedy = [], PUT_BACK
        for served in self._indexes:
            served.check()
            name = served.name
            if served.damage:
                wrong.append(f"the index {name!r} {served.damage}: queries may fail")
                remedy = RESTORE
            elif served.trouble:
                told = "queries are answered from the last snapshot, changes fail"
                wrong.append(f"the index {name!r} {served.trouble}: {told}")
            elif not self._first_query(served):
                wrong.append(f"the index {name!r} {served.damage or 'cannot be searched'}: queries may fail")
                remedy = RESTORE if served.damage else "see the server's log"
        if wrong:
            raise unready("; ".join(wrong), remedy)

    def _warm_up(self) -> None:
        for served in self._indexes:
            if not self._is_stopping():
                self._first_query(served)

    def _first_query(self, served: Served) -> bool:
        """Whether an index can answer; it is asked until it has done so once."""
        if served.name in self._cold:
            try:
                with served.reading() as index:
                    index.search("first", k=1)
            except Exception as error:
                reason = reason_of(error)
                if self._cold.get(served.name) != reason:  # once, however often clients ask
                    self._cold[served.name] = reason
                    unexpected = not isinstance(error, CoilError)
                    extra = {"index": served.name, "reason": reason}
                    _log.error("cannot answer", exc_info=unexpected, extra=extra)
                return False
            self._cold.pop(served.name, None)
        return True


def unready(reason: str, remedy: str = "try again later") -> Problem:
    """The server cannot answer now."""
    return Problem(503, "unready", reason, remedy, {"Retry-After": "1"})
