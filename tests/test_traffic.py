"""Mixed traffic against a real server while other processes write, compact and replace its index.

Every client owns its documents, so it knows what each answer must be. No answer may be wrong or a 500,
nothing acknowledged may be lost, and the server must not grow.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import httpx

from coil.errors import IndexLocked
from coil.indexes.opening import create, open_index
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN
from tests.test_service import ONE, WRITE
from tests.test_service_concurrency import start
from tests.tiny import WORDS

SECONDS = float(os.environ.get("COIL_TRAFFIC_SECONDS", "8"))  # `make soak` asks for ten minutes
CLIENTS = 6
FIXED = 200  # documents that nobody changes


def fixed_text(number: int) -> str:
    return f"river bank {WORDS[number % len(WORDS)]} {WORDS[number * 7 % len(WORDS)]}"


class Client:
    """Asks and changes at random, and remembers what it was promised."""

    def __init__(self, url: str, name: str, seed: int) -> None:
        self.name, self._rng = name, random.Random(seed)
        self._http = httpx.Client(base_url=url, timeout=30, headers=WRITE)
        self.there: dict[str, str] = {}  # id → text, as acknowledged
        self.unsure: set[str] = set()  # changes that were refused: they may have been made before the refusal
        self.counts: Counter[str] = Counter()

    def run(self, until: float) -> None:
        actions: list[Callable[[], Any]] = [
            self.search, self.search, self.search, self.filtered, self.batch, self.explain, self.document,
            self.add, self.add, self.delete, self.describe, self.nonsense,
        ]  # fmt: skip
        while time.monotonic() < until:
            self._rng.choice(actions)()
        self._http.close()

    def ask(self, method: str, path: str, expected: tuple[int, ...] = (200,), **options: Any) -> Any:
        answer = self._http.request(method, path, **options)
        self.counts[str(answer.status_code)] += 1
        # 409: another process writes; 503: others wait already. Both say when to come again.
        assert answer.status_code in (*expected, 409, 503), (
            f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        )
        return answer.json() if answer.status_code == expected[0] else None

    def check_hits(self, hits: list[dict[str, Any]], k: int) -> None:
        assert len(hits) <= k
        assert [hit["rank"] for hit in hits] == list(range(1, len(hits) + 1))
        scores = [hit["score"] for hit in hits]
        assert scores == sorted(scores, reverse=True)
        assert len({hit["doc_id"] for hit in hits}) == len(hits)
        for hit in hits:
            if hit["doc_id"].startswith("fixed"):
                assert hit["text"] == fixed_text(int(hit["doc_id"][5:]))
            elif hit["doc_id"] in self.there and hit["doc_id"] not in self.unsure:
                assert hit["text"] == self.there[hit["doc_id"]]

    def words(self) -> str:
        return " ".join(self._rng.choices(WORDS, k=self._rng.randrange(1, 5)))

    def search(self) -> None:
        k = self._rng.choice([1, 10, 100])
        params = {"q": self.words(), "k": k, "matches": self._rng.random() < 0.2}
        if (found := self.ask("GET", f"{ONE}/search", params=params)) is not None:
            self.check_hits(found["hits"], k)

    def filtered(self) -> None:
        limit = self._rng.randrange(FIXED)
        params = {"q": self.words(), "k": 300, "filter": f"number < {limit} and kind = 'fixed'"}
        if (found := self.ask("GET", f"{ONE}/search", params=params)) is not None:
            self.check_hits(found["hits"], 300)
            assert all(hit["fields"]["number"] < limit for hit in found["hits"])
            assert len(found["hits"]) == limit  # every document has a sentence vector

    def batch(self) -> None:
        queries = [self.words() for _ in range(self._rng.choice([2, 20]))]
        body = {"queries": queries, "k": 5}
        if (found := self.ask("POST", f"{ONE}/search_batch", json=body)) is not None:
            assert len(found["answers"]) == len(queries)
            for answer in found["answers"]:
                self.check_hits(answer["hits"], 5)

    def explain(self) -> None:
        params = {"q": self.words(), "doc_id": f"fixed{self._rng.randrange(FIXED)}"}
        if (found := self.ask("GET", f"{ONE}/explain", params=params)) is not None:
            parts = sum(match["contribution"] for match in found["matches"]) + (found["sentence"] or 0.0)
            assert abs(parts - found["score"]) < 1e-4

    def document(self) -> None:
        number = self._rng.randrange(FIXED)
        if (found := self.ask("GET", f"{ONE}/documents/fixed{number}")) is not None:
            assert found["text"] == fixed_text(number)
        sure = [doc_id for doc_id in self.there if doc_id not in self.unsure]
        if sure:
            doc_id = self._rng.choice(sure)
            if (found := self.ask("GET", f"{ONE}/documents/{doc_id}")) is not None:
                assert found["text"] == self.there[doc_id]

    def add(self) -> None:
        ids = [f"{self.name}-{self._rng.randrange(60)}" for _ in range(self._rng.choice([1, 1, 5]))]
        documents = {doc_id: f"{self.words()} by {self.name} {self._rng.random()}" for doc_id in ids}
        lines = [
            json.dumps({"id": doc_id, "text": text, "kind": "own"}) for doc_id, text in documents.items()
        ]
        if self.ask("POST", f"{ONE}/documents", content="\n".join(lines)) is None:
            self.unsure.update(documents)
            return
        self.there.update(documents)
        self.unsure.difference_update(documents)

    def delete(self) -> None:
        doc_id = f"{self.name}-{self._rng.randrange(60)}"
        found = self.ask("DELETE", f"{ONE}/documents", json={"doc_ids": [doc_id]})
        if found is None:
            self.unsure.add(doc_id)
            return
        if doc_id not in self.unsure:
            assert found["deleted"] == (doc_id in self.there)
        self.there.pop(doc_id, None)
        self.unsure.discard(doc_id)

    def describe(self) -> None:
        if (found := self.ask("GET", ONE)) is not None:
            assert found["documents"] >= FIXED

    def nonsense(self) -> None:
        filters = ["number < ", "007 = 1", "x = ٣", "y = " + "9" * 400, "a.b.c exists and"]
        params = {"q": "river", "filter": self._rng.choice(filters)}
        self.ask("GET", f"{ONE}/search", (400, 422), params=params)


def from_outside(folder: Path, until: float, rng: random.Random, done: Counter[str]) -> None:
    """Another process's writes, compactions and refreshes; the lock may be taken."""
    with open_index(folder, HashEncoder()) as index:
        while time.monotonic() < until:
            time.sleep(rng.uniform(0.05, 0.4))
            try:
                index.refresh()
                if rng.random() < 0.3:
                    index.compact()
                    done["compacted"] += 1
                else:
                    index.update(
                        [{"id": f"outside-{rng.randrange(9)}", "text": "river money", "kind": "own"}]
                    )
                    done["written"] += 1
            except IndexLocked:
                done["locked"] += 1


def serve(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A server whose log somebody reads: it would wait for a pipe that nobody empties."""
    process, url = start(*arguments)
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        threading.Thread(target=_read_to_the_end, args=(stream,), daemon=True).start()
    return process, url


def _read_to_the_end(stream: IO[str]) -> None:
    with stream:
        for _ in stream:
            pass


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def status_of(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def test_mixed_traffic(tmp_path: Path, soaked: Callable[..., None]) -> None:
    folder, token = tmp_path / "notes.coil", tmp_path / "token"
    with create(folder, encoder=HashEncoder()) as index:
        index.add(
            {"id": f"fixed{i}", "text": fixed_text(i), "number": i, "kind": "fixed"} for i in range(FIXED)
        )
    token.write_text(TOKEN)
    token.chmod(0o600)
    process, url = serve(str(folder), "--token-file", str(token))
    clients = [Client(url, f"c{number}", number) for number in range(CLIENTS)]
    outside: Counter[str] = Counter()
    wrong: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                wrong.append(error)

        return run

    until = time.monotonic() + SECONDS
    works = [lambda client=client: client.run(until) for client in clients]  # type: ignore[misc]
    works.append(lambda: from_outside(folder, until, random.Random(5), outside))
    threads = [threading.Thread(target=guarded(work)) for work in works]
    for thread in threads:
        thread.start()
    time.sleep(SECONDS / 4)
    early = status_of(process.pid, "VmRSS")
    for thread in threads:
        thread.join()
    late = status_of(process.pid, "VmRSS")
    descriptors = len(os.listdir(f"/proc/{process.pid}/fd"))
    stop(process)
    if wrong:
        raise wrong[0]
    assert late < early + 64_000, "kilobytes: the server grows"
    assert descriptors < 200
    with open_index(folder, HashEncoder()) as index:
        index.verify()
        for client in clients:
            for doc_id, text in client.there.items():
                if doc_id not in client.unsure:
                    assert index.document(doc_id).text == text
        assert all(index.has(f"fixed{i}") for i in range(FIXED))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < 30_000_000
    counts = sum((client.counts for client in clients), Counter())
    assert counts["200"] > 10 * CLIENTS
    soaked(
        "mixed traffic",
        seconds=round(SECONDS),
        requests=counts.total(),
        refused_busy=counts["503"] + counts["409"],
        errors_500=counts["500"],
        writes_from_outside=outside["written"] + outside["compacted"],
    )


def test_a_server_follows_an_index_that_is_replaced(tmp_path: Path, soaked: Callable[..., None]) -> None:
    """Two folders take turns under one path while clients search: each answer is of one of them."""
    rounds = max(5, round(SECONDS / 2))
    path = tmp_path / "notes.coil"
    for colour in ("blue", "green"):
        with create(tmp_path / colour, encoder=HashEncoder()) as index:
            index.add({"id": f"{colour}{i}", "text": f"river {colour}"} for i in range(20))
    shutil.copytree(tmp_path / "blue", path)
    process, url = serve(str(path))
    over, wrong, answers = threading.Event(), list[BaseException](), Counter[str]()

    def search() -> None:
        try:
            with httpx.Client(base_url=url, timeout=30) as http:
                while not over.is_set():
                    found = http.get(f"{ONE}/search", params={"q": "river", "k": 50})
                    assert found.status_code == 200, found.text
                    ids = [hit["doc_id"] for hit in found.json()["hits"]]
                    colours = {doc_id.rstrip("0123456789") for doc_id in ids}
                    assert len(ids) == 20
                    assert len(colours) == 1
                    answers[colours.pop()] += 1
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(rounds):
            time.sleep(0.1)
            shutil.copytree(tmp_path / ("green" if number % 2 == 0 else "blue"), tmp_path / "next")
            os.rename(path, tmp_path / "last")
            os.rename(tmp_path / "next", path)
            shutil.rmtree(tmp_path / "last")
    finally:
        time.sleep(0.3)
        over.set()
        for thread in threads:
            thread.join()
        stop(process)
    if wrong:
        raise wrong[0]
    assert min(answers["blue"], answers["green"]) > 0
    soaked("indexes replaced under a server", replaced=rounds, answers=answers.total())
