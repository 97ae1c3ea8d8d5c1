"""ServiceLimits: how much one request, and all of them together, may ask of the server."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class ServiceLimits:
    """Bounds that hold for every client. What is beyond one is refused with the bound in the message."""

    query_characters: int = 2_000
    filter_characters: int = 2_000
    k: int = 1_000
    batch_queries: int = 256
    body_bytes: int = 1 << 20
    upload_bytes: int = 64 << 20  # of documents in one request
    seconds: float = 10.0  # for one request that reads; its search stops then, too
    upload_seconds: float = 120.0  # until the body of a request has arrived
    waiting: int = 128  # requests in the queue; the next one gets 503
    writes_waiting: int = 8  # of one index


@dataclass(frozen=True)
class ServiceOptions:
    """What the server was told at its start."""

    limits: ServiceLimits = ServiceLimits()
    threads: int = 0  # that search; 0: one a core
    token: str | None = None  # None: nothing can be changed
    hosts: tuple[str, ...] = ()  # that a request may be addressed to; empty: any
    origins: tuple[str, ...] = ()  # whose pages may read answers
    log_queries: bool = False

    @property
    def searching_threads(self) -> int:
        """How many threads search."""
        if self.threads:
            return self.threads
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
