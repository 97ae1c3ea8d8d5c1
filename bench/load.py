"""Measures a server under load: many clients that search and one that writes, on a loopback port.

    python -m bench.load INDEX QUERIES [--seconds 60] [--clients 1,4,16,64] [--steady 600]

The index is copied first, so it is not changed. Each client sends its next query when it has received the
previous answer (a closed loop). Every answer is compared with the library's, every acknowledged document is
looked up at the end, and the library's own throughput with the same number of threads is measured before and
after each number of clients, in the same run. INDEX is a folder made by `coil index`, QUERIES a file of
queries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from tqdm import tqdm

from bench.stamp import stamp, write_result
from coil.indexes.index import Index
from coil.indexes.opening import open_index
from coil.texts.queries import read_queries

K = 10
WRITTEN = "written-by-load-"  # prefix of the ids of documents written during the run
TOLERANCE = 1e-3  # of a score: texts encoded together may differ in the last bits
TOKEN = "load"


@dataclass
class Tally:
    """What the clients saw."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    write_seconds: list[float] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)


class Client:
    """One keep-alive connection with minimal HTTP: a client library would take more CPU than the server."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of an answer."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        assert self._reader is not None
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {TOKEN}\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        named = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), await self._reader.readexactly(int(named["content-length"]))

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()


class Expected:
    """The library's hits for each query, without documents written during the run."""

    def __init__(self, index: Index, queries: list[str]) -> None:
        self._hits = {}
        for query in tqdm(queries, desc="library's answers", unit=" queries", disable=None):
            self._hits[query] = [(hit.doc_id, hit.score) for hit in index.search(query, K)]
        self._right: dict[str, set[bytes]] = {query: set() for query in queries}

    def fault(self, query: str, body: bytes) -> str | None:
        """The error in an answer; None if it is correct."""
        if body in self._right[query]:  # the same bytes as an answer that was right
            return None
        hits = json.loads(body)["hits"]
        got = [(hit["doc_id"], hit["score"]) for hit in hits if not hit["doc_id"].startswith(WRITTEN)]
        expected = self._hits[query]
        if len(hits) < len(expected):
            return f"{query!r}: {len(hits)} hits, expected {len(expected)}"
        score_of = dict(expected)
        for place, (doc_id, score) in enumerate(got):
            if abs(score - expected[place][1]) > TOLERANCE:
                return f"{query!r}: {doc_id} with {score} at {place}, expected {expected[place]}"
            if abs(score_of.get(doc_id, expected[-1][1]) - score) > TOLERANCE:
                return f"{query!r}: {doc_id} does not score {score}"
        if len(self._right[query]) < 8:
            self._right[query].add(body)
        return None


class Server:
    """`coil serve` in a separate process."""

    def __init__(self, folder: Path, threads: int, place: Path) -> None:
        token = place / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self._log = (place / "server.log").open("w")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "coil.cli.main", "serve", str(folder), "--port", "0"),
                *("--threads", str(threads), "--token-file", str(token)),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout is not None
        address = next((line.split()[1] for line in self.process.stdout if line.startswith("open ")), None)
        if address is None:
            sys.exit((place / "server.log").read_text())
        self.host, self.port = urlsplit(address).hostname or "", urlsplit(address).port or 0
        self.name = folder.name.removesuffix(".coil")
        self.memory: list[tuple[float, float]] = []
        self._began = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> int:
        """Ask it to stop; returns its exit status."""
        self.process.terminate()
        return self.process.wait(60)

    def _watch(self) -> None:
        while self.process.poll() is None:
            try:
                status = Path(f"/proc/{self.process.pid}/status").read_text()
            except OSError:
                return
            mb = int(status.split("VmRSS:")[1].split()[0]) / 1024
            self.memory.append((time.monotonic() - self._began, mb))
            time.sleep(1)


async def load(
    server: Server, clients: int, seconds: float, queries: list[str], expected: Expected, pause: float
) -> Tally:
    """Run all clients at once; a writer adds documents and pauses for `pause` seconds after each."""
    tally = Tally()
    end = time.monotonic() + seconds
    base = f"/v1/indexes/{quote(server.name)}"

    async def search(number: int) -> None:
        client = Client(server.host, server.port)
        place = number * 7919
        while time.monotonic() < end:
            query = queries[place % len(queries)]
            place += 1
            began = time.perf_counter()
            try:
                status, body = await client.ask("GET", f"{base}/search?q={quote(query)}&k={K}&stats=false")
            except (OSError, asyncio.IncompleteReadError) as error:
                tally.errors.append(repr(error))
                client.close()
                client = Client(server.host, server.port)
                continue
            if status != 200:
                tally.errors.append(f"{status} {body[:200].decode(errors='replace')}")
                continue
            tally.seconds.append(time.perf_counter() - began)
            fault = expected.fault(query, body)
            if fault is not None:
                tally.wrong.append(fault)
        client.close()

    async def write() -> None:
        client = Client(server.host, server.port)
        while time.monotonic() < end:
            doc_id = f"{WRITTEN}{clients}-{seconds:g}-{len(tally.acknowledged)}"
            text = f"{queries[len(tally.acknowledged) % len(queries)]} {doc_id}"
            began = time.perf_counter()
            line = json.dumps({"id": doc_id, "text": text}).encode()
            status, body = await client.ask("POST", f"{base}/documents", line)
            if status == 200:
                tally.write_seconds.append(time.perf_counter() - began)
                tally.acknowledged.append(doc_id)
                status, body = await client.ask("GET", f"{base}/documents/{doc_id}")
                if status != 200:  # it must be searchable when the call returns
                    tally.wrong.append(f"{doc_id} is missing after its acknowledgement")
            else:
                tally.errors.append(f"write: {status} {body[:200].decode(errors='replace')}")
            await asyncio.sleep(pause)
        client.close()

    writers = [write()] if pause > 0 else []
    await asyncio.gather(*(search(number) for number in range(clients)), *writers)
    return tally


LIBRARY = """
import sys, threading, time, json
from coil.indexes.opening import open_index
folder, threads, seconds, k = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
queries = json.load(sys.stdin)
index = open_index(folder)
index.search(queries[0], k)
counts = [0] * threads
end = time.monotonic() + seconds
def work(number):
    place = number * 7919
    while time.monotonic() < end:
        index.search(queries[place % len(queries)], k)
        place += 1
        counts[number] += 1
workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
for worker in workers: worker.start()
for worker in workers: worker.join()
print(sum(counts) / seconds)
"""


def library_throughput(folder: Path, threads: int, seconds: float, queries: list[str]) -> float:
    """The queries per second of the library with as many threads as the server."""
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY, str(folder), str(threads), str(seconds), str(K)],
        input=json.dumps(queries),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def percentiles(seconds: list[float]) -> dict[str, float | None]:
    """p50, p95 and p99 in milliseconds."""
    return {
        f"p{p}_ms": round(float(np.percentile(seconds, p)) * 1000, 2) if seconds else None
        for p in (50, 95, 99)
    }


def describe(tally: Tally, seconds: float) -> dict[str, Any]:
    """The figures of one number of clients."""
    return {
        "queries": len(tally.seconds),
        "queries_a_second": round(len(tally.seconds) / seconds, 1),
        **percentiles(tally.seconds),
        "errors": len(tally.errors),
        "wrong_answers": len(tally.wrong),
        "writes": len(tally.acknowledged),
        "write": percentiles(tally.write_seconds),
        "first_problems": (tally.errors + tally.wrong)[:3],
    }


def main() -> None:
    """Measure, write bench/results/load.json, print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("queries")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds for each number of clients")
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument(
        "--threads", type=int, default=2, help="search threads of the server and of the library"
    )
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between writes (0 = no writes)")
    parser.add_argument(
        "--steady", type=float, default=0.0, help="seconds with 16 clients to observe the memory (0 = none)"
    )
    parser.add_argument("--out", type=Path, help="result file, instead of bench/results/load.json")
    given = parser.parse_args()
    queries = [query.text for query in read_queries(given.queries)][:500]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        copy = Path(shutil.copytree(given.index, place / given.index.name))
        still = Path(shutil.copytree(given.index, place / "library.coil"))  # never written to
        with open_index(still) as index:
            documents = len(index)
            expected = Expected(index, queries)
        result: dict[str, Any] = {
            **stamp("fastapi", "uvicorn"),
            "documents": documents,
            "queries": len(queries),
            "k": K,
            "threads": given.threads,
            "seconds": given.seconds,
            "pause_between_writes_s": given.pause,
            "clients": {},
        }
        server = Server(copy, given.threads, place)
        acknowledged: list[str] = []
        for clients in [int(number) for number in given.clients.split(",")]:
            alone = min(given.seconds, 15.0)
            before = library_throughput(still, given.threads, alone, queries)
            tally = asyncio.run(load(server, clients, given.seconds, queries, expected, given.pause))
            after = library_throughput(still, given.threads, alone, queries)
            acknowledged += tally.acknowledged
            found = describe(tally, given.seconds)
            found["library_queries_a_second"] = round(mean([before, after]), 1)
            found["over_library"] = round(found["queries_a_second"] / mean([before, after]), 3)
            result["clients"][str(clients)] = found
            print(f"{clients} clients: {json.dumps(found)}", flush=True)
        if given.steady:
            from_here = len(server.memory)
            tally = asyncio.run(load(server, 16, given.steady, queries, expected, given.pause))
            acknowledged += tally.acknowledged
            mb = [value for _, value in server.memory[from_here:]]
            tenth = max(len(mb) // 10, 1)
            result["steady"] = {
                "seconds": given.steady,
                **describe(tally, given.steady),
                "memory_mb_of_second_tenth": round(mean(mb[tenth : 2 * tenth] or mb), 1),
                "memory_mb_of_last_tenth": round(mean(mb[-tenth:]), 1),
                "memory_mb_every_tenth": [round(value, 1) for value in mb[::tenth]],
            }
        result["peak_memory_mb"] = round(max(mb for _, mb in server.memory), 1)
        result["exit_status"] = server.stop()
        with open_index(copy) as index:
            index.verify()
            result["writes_acknowledged"] = len(acknowledged)
            result["writes_lost"] = sum(not index.has(doc_id) for doc_id in acknowledged)
    path = write_result("load", result, given.out)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
