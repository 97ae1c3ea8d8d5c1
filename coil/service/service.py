"""Service: answers requests within their limits, in threads alongside the event loop."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect

from coil.errors import AnswerTooLarge, SearchTimeout
from coil.service import uploads
from coil.service.answers import (
    Answered,
    Asked,
    Explained,
    answer_queries,
    describe,
    explain_one,
    suggest_one,
)
from coil.service.batches import BatchTurns, PinnedIndex, slice_size
from coil.service.limits import ServiceOptions
from coil.service.meters import Meters
from coil.service.problems import Problem, unknown_document, unknown_index
from coil.service.readable import Changeable, Readable, Served
from coil.service.readiness import Readiness, unready
from coil.service.replies import Reply, UnsentBytes, large_answer
from coil.service.workers import MOST_TOGETHER, Job, Workers
from coil.texts.asking import may_have_operators
from coil.texts.opening import shorten
from coil.texts.values import clean

_log = logging.getLogger("coil.service")
_LOOK_FOR_CLIENT = (
    0.05  # seconds between looks: a page asks again with every letter and drops the last request
)
CHANGES_MAY_TAKE = 20.0  # seconds after the signal to stop; the server waits for 30
MOST_DEEP = 100_000  # hits that can be paged to
_MANY_HITS = 100  # more take so long to fetch and write that the search is not quick
_LONG_QUERY = 300  # characters; the language model takes as long for a longer one as for several others
_LARGE_DOCUMENT = 256 << 10  # bytes; a larger one takes longer than a search
_MUCH_TEXT = 1 << 20  # bytes of all hits; more take longer to fetch and write than a search
_READABLE = 10**15  # a larger number is not written out in a message
_HITS_TOGETHER = 320  # of queries that are answered together: what is held as Python values at once

Gone = Callable[[], bool]
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class _Asking:
    """How a job is queued."""

    kind: Hashable | None = None
    slow: bool = False
    together: int = MOST_TOGETHER
    size: int = 0
    end: float | None = None  # None: the limit from now on
    admitted: bool = False


class Service:
    """The indexes, the threads that search them, and the metrics."""

    def __init__(self, served: Mapping[str, Served], options: ServiceOptions) -> None:
        self.served, self.options = served, options
        self.meters = Meters(
            lambda: self._workers.waiting,
            lambda: sum(index.writes_waiting for index in served.values()),
        )
        self._workers = Workers(options.searching_threads, options.limits.waiting, self.meters.count_batch)
        self._unsent = UnsentBytes(options.limits.unsent_bytes)
        self._batch_turns = BatchTurns(self._workers.slow_places, options.limits.waiting)
        self._stopping = False
        self._give_up_at = math.inf
        self._readiness = Readiness(served.values(), lambda: self._stopping)

    @property
    def writable(self) -> bool:
        """Whether documents can be changed at all."""
        return self.options.token is not None

    def begin_to_stop(self, at_once: bool = False) -> None:
        """From now on the server is not ready, and uploads have some seconds to finish, or none."""
        self._stopping = True
        until = time.monotonic() + (0.0 if at_once else CHANGES_MAY_TAKE)
        self._give_up_at = min(self._give_up_at, until)

    def stop(self) -> None:
        """Finish running requests and writes, then close the indexes.

        Requests that read are over by then, or their time is; one that is still running is not waited for.
        """
        self._stopping = True
        self._readiness.stop()
        running = self._workers.stop()
        if running:
            _log.error("searches are still running", extra={"threads": running})
        for index in self.served.values():
            index.close()

    async def check_ready(self) -> bytes:
        """Whether queries can be answered; otherwise a Problem says why."""

        def answer(_: float) -> bytes:
            self._readiness.check()
            return _json({"status": "ready"})

        if self._stopping:
            raise unready("the server is stopping")
        if self._readiness.is_warming_up:
            raise unready("some indexes have not answered their first query yet")
        return await self._ask_alone(answer)

    # ---- questions

    async def search(self, name: str, query: str, asked: Asked, gone: Gone) -> Reply:
        """The answer to one query; if the client is gone before its turn, nothing is searched."""
        served = self._index(name)
        self._check(asked)

        def answer(
            queries: list[str], seconds: float, most_each: int | None = None
        ) -> list[Reply | Exception]:
            deadline = time.monotonic() + seconds
            with served.reading() as index:
                found = self._answer(served, index, queries, asked, seconds, most_each)
            found.reverse()
            return [self._written(found.pop(), deadline) for _ in queries]

        # One that is wrong fails alone; texts may have to be read to know.
        operators = not asked.plain and may_have_operators(query)
        is_long = len(query) > _LONG_QUERY or operators
        job = _Asking(
            (name, asked),
            slow=is_long or asked.is_slow or asked.hits > _MANY_HITS,
            together=1 if operators else max(1, min(MOST_TOGETHER, _HITS_TOGETHER // asked.hits)),
            size=len(query),
            end=time.monotonic() + self.options.limits.seconds,
        )
        cleaned = self._query(query)
        found: Reply
        if not job.slow:
            try:
                found = await self._ask(partial(answer, most_each=_MUCH_TEXT), cleaned, job, gone)
                return found
            except AnswerTooLarge:  # only now is it known that this takes long, though no text was read yet
                job = replace(job, slow=True, together=1)
        found = await self._ask(answer, cleaned, job, gone)
        return found

    async def search_batch(self, name: str, queries: Sequence[str], asked: Asked, gone: Gone) -> Reply:
        """The answers to many queries, in order, all from one state of the index.

        Slices of the batch are queued one after another, so that other requests are answered in between.
        """
        served = self._index(name)
        self._check(asked)
        most = self.options.limits.batch_queries
        if len(queries) > most:
            detail = f"{len(queries):,} queries exceed the limit of {most:,} in a batch"
            raise Problem(422, "too_many", detail, "send them in several requests")
        cleaned = [self._query(query) for query in queries]
        end = time.monotonic() + self.options.limits.seconds
        reply = self._new_reply(end)
        pinned = PinnedIndex(served)

        def answer(some: list[Sequence[str]], seconds: float) -> list[None]:
            with pinned.use() as index:
                found = self._answer(served, index, some[0], asked, seconds)
            for one in found:
                assert one.value is not None, "only all of them together are limited"
                reply.add_bytes(b", " if reply.length else b'{"answers": [')
                reply.add_answer(one.value)
            return [None]

        size = slice_size(asked)
        try:
            async with self._batch_turns.turn(end, -(-len(cleaned) // size), gone):
                for begin in range(0, len(cleaned), size):
                    job = _Asking(slow=True, end=end, admitted=begin > 0)
                    await self._ask(answer, cleaned[begin : begin + size], job, gone)
        finally:
            pinned.close()
        reply.add_bytes(b"]}")
        return reply.finish()

    async def explain(
        self, name: str, query: str, doc_id: str, versus: str | None, how: Explained, gone: Gone
    ) -> Reply:
        """Why a document has its score."""
        served = self._index(name)

        def answer(seconds: float) -> Reply:
            reply = self._new_reply(time.monotonic() + seconds)
            with served.reading() as index:
                for wanted in (doc_id, versus):
                    if wanted is not None and not index.has(clean(wanted)):
                        raise unknown_document(wanted)
                other = clean(versus) if versus is not None else None
                reply.add(explain_one(index, cleaned, clean(doc_id), other, how, seconds))
            return reply.finish()

        cleaned = self._query(query)
        return await self._ask_alone(answer, gone, slow=True)

    async def suggest(self, name: str, query: str, plain: bool, gone: Gone) -> bytes:
        """Similar words for words that no document contains; nothing is searched."""
        served = self._index(name)

        def answer(seconds: float) -> bytes:
            with served.reading() as index:
                return _json({"query": cleaned, "suggestions": suggest_one(index, cleaned, plain, seconds)})

        cleaned = self._query(query)
        return await self._ask_alone(answer, gone, slow=True)

    async def document(self, name: str, doc_id: str) -> Reply:
        """A document by its id."""
        served = self._index(name)

        def answer(seconds: float, slow: bool = False) -> Reply | None:
            reply = self._new_reply(time.monotonic() + seconds)
            with served.reading() as index:
                size = index.size_of(clean(doc_id))
                if size is None:
                    raise unknown_document(doc_id)
                if size > _LARGE_DOCUMENT and not slow:
                    return None
                reply.add(asdict(index.document(clean(doc_id))))
            return reply.finish()

        reply = await self._ask_alone(answer)
        if reply is None:  # only now is it known that this takes long
            reply = await self._ask_alone(partial(answer, slow=True), slow=True)
            assert reply is not None
        return reply

    async def describe(self, name: str) -> bytes:
        """Sizes and settings of an index; all of its lists are counted."""
        served = self._index(name)

        def answer(seconds: float) -> bytes:
            with served.reading() as index:
                return _json(describe(index, name, self.writable, seconds))

        return await self._ask_alone(answer, slow=True)

    async def list_indexes(self) -> bytes:
        """The indexes by name; the first is the default."""

        def answer(_: float) -> bytes:
            found = []
            for place, (name, served) in enumerate(self.served.items()):
                size = served.count_documents()  # one that is damaged does not hide the others
                found.append(
                    {"name": name, "documents": size, "default": place == 0, "writable": self.writable}
                )
            return _json({"indexes": found})

        return await self._ask_alone(answer)

    # ---- changes

    def authorise(self, header: str | None) -> None:
        """Check that this Authorization header allows changes; otherwise a Problem."""
        if self.options.token is None:
            raise Problem(
                403,
                "read_only",
                "this server is read-only",
                "start it with --token-file FILE to allow changes",
            )
        scheme, _, given = (header or "").partition(" ")
        # Headers are decoded as Latin-1, in which other bytes of UTF-8 are spaces, too; this restores them.
        sent = given.strip(" \t").encode("latin-1", "replace")
        if scheme.lower() != "bearer" or not hmac.compare_digest(sent, self.options.token.encode()):
            raise Problem(
                401,
                "wrong_token",
                "changes require the token of this server",
                "send it as `Authorization: Bearer TOKEN`",
                {"WWW-Authenticate": "Bearer"},
            )

    async def add(self, name: str, body: AsyncIterator[bytes], exact: bool = False) -> bytes:
        """Add or update the documents of a body of JSON lines; they are searchable when this returns."""
        served = self._index(name)
        with served.place_to_write():
            received = await uploads.receive(body)

            def change(index: Changeable) -> bytes:
                empty: list[str] = []
                with received:
                    self._go_on()
                    added = uploads.check(received, exact, self._go_on)
                    before = index.version
                    try:
                        lines = uploads.read(received, exact, self._go_on)
                        index.update(lines, empty.extend, self._go_on)
                    except _GivenUp as error:
                        if index.version != before:  # a long upload is committed in several parts
                            raise _given_up_halfway() from error
                        raise
                self.meters.count_written(name, "add", added)
                return _json({"added": added, "empty": empty, "documents": len(index)})

            return await _whole(served.write(change))

    async def delete(self, name: str, doc_ids: Sequence[str]) -> bytes:
        """Delete documents; the answer lists the ids that do not exist."""
        served = self._index(name)

        def change(index: Changeable) -> bytes:
            missing: list[str] = []
            deleted = index.delete([clean(doc_id) for doc_id in doc_ids], missing.extend)
            self.meters.count_written(name, "delete", deleted)
            return _json({"deleted": deleted, "missing": missing, "documents": len(index)})

        with served.place_to_write():
            return await _whole(served.write(change))

    async def delete_one(self, name: str, doc_id: str) -> bytes:
        """Delete one document, which must exist."""
        served = self._index(name)

        def change(index: Changeable) -> bytes:
            if not index.delete([clean(doc_id)]):
                raise unknown_document(doc_id)
            self.meters.count_written(name, "delete", 1)
            return _json({"deleted": 1, "missing": [], "documents": len(index)})

        with served.place_to_write():
            return await _whole(served.write(change))

    # ---- inside

    def _go_on(self) -> None:
        """Abandon a change that takes too long while the server stops."""
        if time.monotonic() > self._give_up_at:
            raise _GivenUp

    def _index(self, name: str) -> Served:
        if name not in self.served:
            raise unknown_index(name)
        return self.served[name]

    def _query(self, query: str) -> str:
        most = self.options.limits.query_characters
        if len(query) > most:
            detail = f"the query has {len(query):,} characters, which exceeds the limit of {most:,}"
            raise Problem(422, "too_long", detail, "shorten the query")
        return clean(query)

    def _check(self, asked: Asked) -> None:
        limits = self.options.limits
        if asked.k > limits.k:
            given = f"{asked.k:,}" if asked.k < _READABLE else shorten(str(asked.k)).strip("'")
            detail = f"k={given} exceeds the limit of {limits.k:,}"
            raise Problem(422, "too_many", detail, "request fewer hits")
        if asked.offset + asked.k > MOST_DEEP:
            detail = f"offset + k exceeds the limit of {MOST_DEEP:,}"
            raise Problem(422, "too_many", detail, "narrow the query instead of paging further")
        if asked.filter is not None and len(asked.filter) > limits.filter_characters:
            detail = (
                f"the filter has {len(asked.filter):,} characters, "
                f"which exceeds the limit of {limits.filter_characters:,}"
            )
            raise Problem(422, "too_long", detail, "shorten the filter")

    def _answer(
        self,
        served: Served,
        index: Readable,
        queries: Sequence[str],
        asked: Asked,
        seconds: float,
        most_each: int | None = None,
    ) -> list[Answered]:
        """Answer queries, except those with more text than `most_each`. If it is not given, more text than
        may be sent is a Problem."""
        most = self.options.limits.answer_bytes
        try:
            most_text = most if most_each is None else None
            found = answer_queries(index, queries, asked, seconds, most_text, most_each)
        except AnswerTooLarge as error:  # found out before texts were fetched and filled the memory
            raise large_answer(most) from error
        for one in found:
            if one.value is not None:
                self.meters.count_query(served.name, one.stats)
        return found

    def _new_reply(self, deadline: float) -> Reply:
        return Reply(self.options.limits.answer_bytes, self._unsent, deadline)

    def _written(self, found: Answered, deadline: float) -> Reply | Exception:
        """The answer as JSON, or why there is none; the others of its group are not affected."""
        if found.value is None:
            return AnswerTooLarge("the texts of the hits exceed the limit", "request fewer hits")
        reply = self._new_reply(deadline)
        try:
            reply.add_answer(found.value)
        except Problem as problem:
            return problem
        return reply.finish()

    async def _ask_alone(
        self, answer: Callable[[float], _Found], gone: Gone | None = None, slow: bool = False
    ) -> _Found:
        found: _Found = await self._ask(lambda _, seconds: [answer(seconds)], None, _Asking(slow=slow), gone)
        return found

    async def _ask(
        self,
        answer: Callable[[list[Any], float], list[Any]],
        value: Any,
        how: _Asking,
        gone: Gone | None = None,
    ) -> Any:
        end = how.end or time.monotonic() + self.options.limits.seconds
        job = Job(how.kind, value, answer, end, how.slow, how.together, how.size)
        future = asyncio.wrap_future(self._workers.submit(job, how.admitted))
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # possibly nobody waits
        while not future.done():
            # The parts of a search that cannot check the time may take a little longer.
            left = end + 1.0 - time.monotonic()
            if left <= 0:
                future.cancel()
                limit = f"{self.options.limits.seconds:g} seconds"
                raise SearchTimeout(f"the request exceeded the limit of {limit}", "request less at a time")
            await asyncio.wait({future}, timeout=left if gone is None else min(left, _LOOK_FOR_CLIENT))
            if not future.done() and gone is not None and gone():
                future.cancel()
                raise ClientDisconnect
        return future.result()


class _GivenUp(Problem):
    """A change was abandoned, because the server stops, before anything was written."""

    def __init__(self) -> None:
        detail = "the server is stopping; nothing was changed"
        super().__init__(503, "busy", detail, "send it again later", {"Retry-After": "5"})


def _given_up_halfway() -> Problem:
    detail = "the server is stopping; some of the documents were written"
    return Problem(503, "busy", detail, "send all of them again later", {"Retry-After": "5"})


async def _whole(change: Future[bytes]) -> bytes:
    """Wait for a change, which continues if the client disconnects.

    A server that stops interrupts it: a change that has not started is then not made.
    """
    waited = asyncio.wrap_future(change)
    waited.add_done_callback(lambda done: done.cancelled() or done.exception())  # possibly nobody waits
    try:
        return await asyncio.shield(waited)
    except asyncio.CancelledError:
        if change.cancel():
            raise _GivenUp from None
        raise


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
