"""Meters: counters and latencies in the Prometheus format."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from coil.hits.answering import SearchStats

_REST = 20.0  # how many times as long as it took to write, a text of all metrics is used again
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Meters:
    """The counters of one server."""

    def __init__(self, waiting: Callable[[], float], writes_waiting: Callable[[], float]) -> None:
        self._registry = registry = CollectorRegistry()
        self._text, self._text_until = b"", 0.0
        self._requests = Histogram(
            "coil_request_seconds",
            "Duration of HTTP requests.",
            ("method", "route", "status"),
            buckets=SECONDS,
            registry=registry,
        )
        self._parts = Histogram(
            "coil_search_seconds",
            "Duration of a query by part: filter, encode, score, fetch, total.",
            ("index", "part"),
            buckets=SECONDS,
            registry=registry,
        )
        self._queries = Counter("coil_queries", "Queries answered.", ("index",), registry=registry)
        self._scored = Counter("coil_mentions_scored", "Mentions scored.", ("index",), registry=registry)
        self._skipped = Counter("coil_mentions_skipped", "Mentions skipped.", ("index",), registry=registry)
        self._batches = Histogram(
            "coil_batch_queries",
            "Requests per group.",
            buckets=(1, 2, 4, 8, 16, 32),
            registry=registry,
        )
        self._wait = Histogram(
            "coil_wait_seconds",
            "Queue time of the first request of a group.",
            buckets=SECONDS,
            registry=registry,
        )
        self._errors = Counter("coil_errors", "Refused or failed requests.", ("kind",), registry=registry)
        self._writes = Counter(
            "coil_documents_written", "Documents added or deleted.", ("index", "change"), registry=registry
        )
        self.in_flight = Gauge("coil_requests_in_flight", "Requests in progress.", registry=registry)
        Gauge("coil_queue_length", "Requests waiting for a thread.", registry=registry).set_function(waiting)
        Gauge("coil_writes_waiting", "Waiting and running changes.", registry=registry).set_function(
            writes_waiting
        )

    def count_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def count_batch(self, size: int, waited: float) -> None:
        """Count requests that were taken from the queue together."""
        self._batches.observe(size)
        self._wait.observe(waited)

    def count_query(self, index: str, stats: SearchStats) -> None:
        """Count an answered query."""
        self._queries.labels(index).inc()
        self._scored.labels(index).inc(stats.mentions_scored)
        self._skipped.labels(index).inc(stats.mentions_skipped)
        parts = {"encode": stats.encode_ms, "score": stats.score_ms, "fetch": stats.fetch_ms}
        parts |= {"filter": stats.filter_ms} if stats.filter_ms else {}
        for part, ms in {**parts, "total": sum(parts.values())}.items():
            self._parts.labels(index, part).observe(ms / 1000)

    def count_error(self, kind: str) -> None:
        """Count a request that was refused or failed."""
        self._errors.labels(kind).inc()

    def count_written(self, index: str, change: str, documents: int) -> None:
        """Count documents that were added or deleted."""
        self._writes.labels(index, change).inc(documents)

    def text(self) -> bytes:
        """All metrics in the Prometheus format, some milliseconds old if they are asked for all the time.

        The event loop writes them. So clients that ask for nothing else take a twentieth of its time at most.
        """
        if time.monotonic() >= self._text_until:
            began = time.thread_time()
            self._text = generate_latest(self._registry)
            self._text_until = time.monotonic() + _REST * (time.thread_time() - began)
        return self._text
