"""ServiceLimits: what a request, a connection, and all of them together may use."""

from __future__ import annotations

from dataclasses import dataclass

from coil.vectors.parallel import usable_cores


@dataclass(frozen=True)
class ServiceLimits:
    """Bounds that hold for every client. A request that exceeds one is refused, and the message names it."""

    # one request
    query_characters: int = 2_000
    filter_characters: int = 2_000
    k: int = 1_000
    batch_queries: int = 256
    body_bytes: int = 1 << 20
    upload_bytes: int = 64 << 20  # of documents in one request
    answer_bytes: int = 64 << 20
    seconds: float = 10.0  # for one request that reads; its search stops then, too
    # one connection
    header_bytes: int = 64 << 10  # request line and headers; a query of the allowed length fits in any script
    header_fields: int = 100
    header_seconds: float = 10.0  # until the request line and all headers have arrived
    body_seconds: float = 10.0  # until the body of a request has arrived
    upload_seconds: float = 120.0  # until documents have arrived from a client that may change the index
    answer_seconds: float = 60.0  # until a client has read its answer
    idle_seconds: int = 5  # between two requests of a connection
    pipelined: int = 16  # requests sent ahead of the answer to the first
    # all of them together
    connections: int = 512
    pipelined_at_once: int = 8  # requests sent ahead of an answer that are answered at a time
    waiting: int = 128  # requests in the queue
    writes_waiting: int = 8  # of one index
    unsent_bytes: int = 256 << 20  # of answers that are made and not yet sent


@dataclass(frozen=True)
class ServiceOptions:
    """The options given when the server was started."""

    limits: ServiceLimits = ServiceLimits()
    threads: int = 0  # search threads; 0: one per core
    token: str | None = None  # None: nothing can be changed
    hosts: tuple[str, ...] = ()  # that a request may be addressed to; empty: any
    origins: tuple[str, ...] = ()  # whose pages may read answers
    log_queries: bool = False

    @property
    def searching_threads(self) -> int:
        """The number of search threads."""
        return self.threads or usable_cores()
