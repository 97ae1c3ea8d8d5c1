"""Requests that are allowed but expensive: others are answered meanwhile."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from coil.service.service import _LONG_QUERY
from coil.service.workers import MOST_CHARACTERS, Job, Workers
from tests.raw_http import wait_until
from tests.test_service import ONE, build
from tests.test_service_fairness import gated, search


def test_long_queries_leave_a_thread_to_short_ones(tmp_path: Path) -> None:
    long = "slow " + "river " * (_LONG_QUERY // 6 + 1)
    with gated(build(tmp_path / "notes.coil"), threads=2) as (server, encoder), ThreadPoolExecutor(8) as pool:
        url = f"{server.url.rstrip('/')}{ONE}/search"

        def ask() -> Future[httpx.Response]:
            return pool.submit(httpx.get, url, params={"q": long}, timeout=60)

        waiting = [ask()]
        wait_until(lambda: encoder.reached == 1)
        waiting += [ask() for _ in range(5)]
        wait_until(lambda: server.service._workers.waiting == 5)
        for _ in range(3):
            assert search(server).status_code == 200
        assert encoder.reached == 1
        encoder.allowed.release(100)
        assert [one.result(30).status_code for one in waiting] == [200] * 6


def test_queries_are_answered_together_up_to_so_many_characters() -> None:
    sizes: list[int] = []
    go_on = threading.Event()
    workers = Workers(1, 100, lambda size, _: sizes.append(size))

    def answer(values: list[int], _: float) -> list[int]:
        assert go_on.wait(20)
        return values

    def ask(size: int) -> Future[Any]:
        return workers.submit(Job("a", size, answer, time.monotonic() + 20, size=size))

    asked = [ask(1)]
    wait_until(lambda: workers.waiting == 0)
    half = MOST_CHARACTERS // 2
    asked += [ask(size) for size in (half, half, 1, 2, 3 * half, 3)]
    go_on.set()
    assert [one.result(20) for one in asked] == [1, half, half, 1, 2, 3 * half, 3]
    assert sizes == [1, 2, 2, 1, 1]
    workers.stop()
