"""Large answers: limits on bytes and time, and memory that is given back."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coil.errors import AnswerTooLarge, SearchTimeout
from coil.indexes.opening import create, open_index
from coil.service import replies
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.problems import Problem
from coil.service.replies import PIECE, Reply, UnsentBytes
from coil.service.workers import Job, Workers
from coil.storage.documents import DocumentReader
from tests.hash_encoder import HashEncoder
from tests.raw_http import connected, errors, read_answer, wait_until
from tests.serving import TOKEN, Running, running
from tests.test_service import ONE, WRITE, build, expect_problem

MILLION = 10**6


def a_hit(text: str) -> dict[str, Any]:
    return {
        "rank": 1,
        "doc_id": "ä",
        "score": 0.5,
        "share": None,
        "text": text,
        "fields": {},
        "chunk": [0, 1],
        "context": "",
    }


def add_large_documents(server: Running, n: int) -> None:
    """Documents whose fields have a million bytes each; only their short texts are encoded."""
    lines = b"\n".join(b'{"id": "%d", "text": "river", "pad": "%s"}' % (i, b"x" * MILLION) for i in range(n))
    assert server.client.post(f"{ONE}/documents", content=lines, headers=WRITE).status_code == 200


@pytest.mark.parametrize("hits", [0, 1, 3, 2000])
def test_the_bytes_are_those_of_the_whole_object(hits: int) -> None:
    value = {"query": 'a "b"', "hits": [a_hit("τ" * 40)] * hits, "stats": {"x": 1.5}, "own_score": None}
    reply = Reply(MILLION, UnsentBytes(MILLION))
    reply.add_answer(value)
    made = b"".join(reply.finish().pieces)
    assert made == json.dumps(value, ensure_ascii=False).encode()
    assert reply.length == len(made)
    assert len(reply.pieces) == -(-len(made) // PIECE) or hits == 2000


def test_hits_with_large_fields_are_encoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other thread runs while the encoder does: 16 hits with a hundred thousand numbers took a second."""
    encode, counts = replies._ENCODER.encode, list[int]()

    class Encoder:
        def encode(self, value: Any) -> str:
            if isinstance(value, list):
                counts.append(len(value))
            return encode(value)

    monkeypatch.setattr(replies, "_ENCODER", Encoder())
    large = {**a_hit("river"), "fields": {"numbers": [0.5] * 20_000}}
    for hits in ([large] * 16, [large] * 3 + [a_hit("river")] * 60):
        counts.clear()
        reply = Reply(100 * MILLION, UnsentBytes(100 * MILLION))
        reply.add_answer({"hits": hits})
        assert json.loads(b"".join(reply.finish().pieces)) == {"hits": hits}
        assert counts[:3] == [1, 1, 1]
        assert max(counts) == (1 if len(hits) == 16 else 16)


def test_nothing_is_written_beyond_the_limit() -> None:
    unsent = UnsentBytes(10 * MILLION)
    reply = Reply(MILLION, unsent)
    never = {**a_hit("x"), "fields": object()}  # would fail if it were written
    with pytest.raises(Problem, match="exceeds the limit of 1,000,000 bytes") as caught:
        reply.add_answer({"query": "a", "hits": [a_hit("x" * 300_000)] * 4 + [never]})
    assert caught.value.status_code == 413
    assert unsent.now == 0  # and nothing is kept
    large = {**a_hit("x" * (MILLION + 1)), "fields": object()}  # a text that cannot fit is not even tried
    with pytest.raises(Problem, match="exceeds the limit"):
        Reply(MILLION, unsent).add_answer({"query": "a", "hits": [large]})


def test_writing_stops_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("coil.service.replies.time", SimpleNamespace(monotonic=lambda: now))
    unsent = UnsentBytes(10 * MILLION)
    reply = Reply(10 * MILLION, unsent, deadline=now + 1)
    many = {"query": "a", "hits": [a_hit("x" * 1000)] * 1000}
    reply.add_answer(many)
    assert unsent.now > 0
    now += 2
    with pytest.raises(SearchTimeout):
        reply.add_answer(many)
    assert unsent.now == 0


def test_replies_share_one_limit_and_give_back() -> None:
    unsent = UnsentBytes(MILLION)
    first, second = Reply(MILLION, unsent, math.inf), Reply(MILLION, unsent, math.inf)
    first.add("x" * 900_000)
    with pytest.raises(Problem, match="pending responses exceed the limit") as caught:
        second.add("x" * 200_000)
    assert caught.value.status_code == 503
    assert (caught.value.headers or {})["Retry-After"]
    del first  # nobody sent it
    assert unsent.now == 0


def test_an_answer_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    limits = ServiceLimits(answer_bytes=5_000)
    with running([build(tmp_path / "notes.coil")], ServiceOptions(limits=limits), HashEncoder()) as server:
        for got in (
            server.client.get(f"{ONE}/search", params={"q": "river", "k": 40}),
            server.client.get(
                f"{ONE}/search", params={"q": "river the of a money bank loan", "k": 40, "by": "bm25"}
            ),
            server.client.post(f"{ONE}/search_batch", json={"queries": ["river"] * 40, "k": 2}),
        ):
            assert got.status_code == 413, got.text
            expect_problem(got)
            assert got.json()["detail"] == "the response exceeds the limit of 5,000 bytes"
            assert "fewer hits" in got.json()["remedy"]
        assert server.client.get(f"{ONE}/search", params={"q": "river", "k": 3}).status_code == 200


def test_only_the_large_one_of_those_answered_together_is_refused(tmp_path: Path) -> None:
    from coil.service.answers import Answered, Asked
    from coil.service.service import Service

    with running([build(tmp_path / "notes.coil", 3)], encoder=HashEncoder()) as server:
        service: Service = server.service
        stats: Any = None
        small = Answered({"query": "a", "hits": [a_hit("x")]}, stats)
        large = Answered({"query": "a", "hits": [a_hit("x" * (65 << 20))]}, stats)
        written = [service._written(one, math.inf) for one in (small, large, small)]
        assert [isinstance(one, Reply) for one in written] == [True, False, True]
        assert Asked().k == 10


def test_unread_answers_do_not_add_up(tmp_path: Path) -> None:
    """All answers that are not yet sent share one limit; a client that goes away gives back its part."""
    limits = ServiceLimits(unsent_bytes=10 * MILLION, answer_seconds=30.0)
    options = ServiceOptions(limits=limits, token=TOKEN)
    with running([build(tmp_path / "notes.coil", 1)], options, HashEncoder()) as server:
        add_large_documents(server, 8)
        ask = f"GET {ONE}/search?q=river&k=9 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with connected(server, receive_buffer=4096) as lazy:
            lazy.sendall(ask)
            wait_until(lambda: server.service._unsent.now > 7 * MILLION)
            refused = server.client.get(f"{ONE}/search", params={"q": "river", "k": 9})
            assert refused.status_code == 503, refused.text[:300]
            assert refused.headers["retry-after"] == "1"
            expect_problem(refused)
            assert server.client.get(f"{ONE}/search", params={"q": "bank", "k": 1}).status_code == 200
        wait_until(lambda: server.service._unsent.now == 0)
        with connected(server) as connection:
            connection.sendall(ask)
            assert len(json.loads(read_answer(connection).body)["hits"]) == 9
        wait_until(lambda: server.service._unsent.now == 0)
        assert errors(server, "failure") == 0


def test_a_large_answer_arrives_whole(tmp_path: Path) -> None:
    with running([build(tmp_path / "notes.coil", 1)], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        add_large_documents(server, 3)
        got = server.client.get(f"{ONE}/search", params={"q": "river", "k": 9})
        assert int(got.headers["content-length"]) == len(got.content) > 3 * MILLION
        assert sum(len(hit["fields"].get("pad", "")) for hit in got.json()["hits"]) == 3 * MILLION
        bare = server.client.head(f"{ONE}/search", params={"q": "river", "k": 9})
        assert (bare.status_code, bare.content) == (200, b"")
        document = server.client.get(f"{ONE}/documents/1").json()
        assert len(document["fields"]["pad"]) == MILLION
        assert server.service._unsent.now == 0


def test_long_documents_behind_short_ones_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path / "notes.coil", encoder=HashEncoder(), long="truncate") as index:
        index.add({"id": f"s{i}", "text": "river"} for i in range(200))
        index.add({"id": f"l{i}", "text": "river bank", "pad": "x" * 300_000} for i in range(60))
    blocks: list[int] = []
    fetch = DocumentReader.fetch_into

    def measured(self: DocumentReader, found: Any, ordinals: Sequence[int], texts: bool = True) -> None:
        fetch(self, found, ordinals, texts)
        if texts:
            blocks.append(sum(found[ordinal].size for ordinal in ordinals))

    monkeypatch.setattr(DocumentReader, "fetch_into", measured)
    limits = ServiceLimits(answer_bytes=32_000_000)
    with running([tmp_path / "notes.coil"], ServiceOptions(limits=limits), HashEncoder()) as server:
        answer = server.client.get(f"{ONE}/search", params={"q": "river", "k": 260, "by": "bm25"})
        assert answer.status_code == 200
        assert max(blocks) < 1_100_000
        assert sum(blocks) > 18_000_000


def test_a_search_whose_hits_are_long_gives_way_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queued: list[bool] = []
    submit = Workers.submit

    def noted(self: Workers, job: Job, admitted: bool = False) -> Future[Any]:
        queued.append(job.slow)
        return submit(self, job, admitted)

    with create(tmp_path / "notes.coil", encoder=HashEncoder(), long="truncate") as index:
        index.add({"id": f"s{i}", "text": "river"} for i in range(3))
        index.add({"id": f"l{i}", "text": "bank", "pad": "x" * 600_000} for i in range(3))
    with running([tmp_path / "notes.coil"], encoder=HashEncoder()) as server:
        monkeypatch.setattr(Workers, "submit", noted)
        for query, classes in (("river", [False]), ("bank", [False, True])):
            queued.clear()
            answer = server.client.get(f"{ONE}/search", params={"q": query, "k": 3, "by": "bm25"})
            assert [hit["doc_id"][0] for hit in answer.json()["hits"]] == [
                {"river": "s", "bank": "l"}[query]
            ] * 3
            assert queued == classes


def test_long_hits_are_left_to_the_slow_queue_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither are they parsed to learn how long they are, nor do they make others of their group fail."""
    with create(tmp_path / "notes.coil", encoder=HashEncoder(), long="truncate") as index:
        index.add({"id": f"s{i}", "text": "river"} for i in range(3))
        index.add({"id": f"l{i}", "text": "bank", "pairs": [["a", 1]] * 40_000} for i in range(3))
    read: list[str] = []
    fetch = DocumentReader.fetch_into

    def noted(self: DocumentReader, found: Any, ordinals: Sequence[int], texts: bool = True) -> None:
        fetch(self, found, ordinals, texts)
        read.extend(found[ordinal].doc_id for ordinal in ordinals if texts)

    monkeypatch.setattr(DocumentReader, "fetch_into", noted)
    with open_index(tmp_path / "notes.coil", HashEncoder()) as index:
        queries = ["bank", "river", "bank"]
        found = index.answer_many(queries, 3, by="bm25", texts=True, most_each=1 << 20)
        assert [answer.is_large for answer in found] == [True, False, True]
        assert sorted(read) == ["s0", "s1", "s2"]
        assert len(found[0].hits[0].fields["pairs"]) == 40_000  # read when it is asked for
    with running([tmp_path / "notes.coil"], encoder=HashEncoder()) as server:
        read.clear()
        params = {"q": "bank", "k": 3, "by": "bm25"}
        assert len(server.client.get(f"{ONE}/search", params=params).json()["hits"]) == 3
        assert sorted(read) == ["l0", "l1", "l2"]  # once


def test_texts_beyond_the_limit_are_not_read_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand long documents would fill the memory before the first byte of the answer is written."""
    with create(tmp_path / "notes.coil", encoder=HashEncoder(), long="truncate") as index:
        index.add({"id": str(i), "text": f"river {i} " + "x" * 100_000} for i in range(60))
        with pytest.raises(AnswerTooLarge):
            index.answer_many(["river"], k=60, texts=True, most_text=1_000_000)
        [few] = index.answer_many(["river"], k=9, texts=True, most_text=1_000_000)
        assert len(few.hits) == 9
    read: list[int] = []
    fetch = DocumentReader.fetch_into

    def counted(self: DocumentReader, found: Any, ordinals: Sequence[int], texts: bool = True) -> None:
        read.extend(ordinals if texts else ())
        fetch(self, found, ordinals, texts)

    monkeypatch.setattr(DocumentReader, "fetch_into", counted)
    limits = ServiceLimits(answer_bytes=1_000_000)
    with running([tmp_path / "notes.coil"], ServiceOptions(limits=limits), HashEncoder()) as server:
        for by in ("coil", "bm25"):
            read.clear()
            answer = server.client.get(f"{ONE}/search", params={"q": "river", "k": 60, "by": by})
            assert answer.status_code == 413
            assert "1,000,000 bytes" in answer.json()["detail"]
            assert not read
