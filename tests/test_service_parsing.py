"""What a small request may cost the event loop, in which no other client is served meanwhile."""

from __future__ import annotations

import http.cookies
import io
import json
from collections.abc import Iterator

import pytest

from coil.errors import BadLine
from coil.service import uploads
from coil.service.connections import Connection
from coil.service.limits import ServiceOptions
from tests.hash_encoder import HashEncoder
from tests.raw_http import connected, read_all, read_answer, wait_until
from tests.serving import Running, running
from tests.test_service import ONE, build

HOST = b"Host: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = build(tmp_path_factory.mktemp("served") / "notes.coil")
    with running([folder], ServiceOptions(), HashEncoder()) as found:
        wait_until(lambda: found.client.get("/ready").status_code == 200)
        yield found
        assert 'status="500"' not in found.client.get("/metrics").text


def test_cookies_are_not_parsed(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's parser took seconds for 60 KB of backslashes until 3.11.10 (CVE-2024-7592)."""
    parsed: list[str] = []
    monkeypatch.setattr(http.cookies, "_unquote", lambda value: parsed.append(value) or value)
    for name in (b"Cookie", b"cOOKIE"):
        with connected(server) as connection:
            ask = f"GET {ONE}/search?q=river HTTP/1.1\r\n".encode() + HOST + name
            connection.sendall(ask + b': a="' + b'\\"' * 20_000 + b'"\r\n\r\n')
            assert read_answer(connection).status == 200
    assert not parsed


@pytest.mark.parametrize("line", [b"\r\n", b"\n", b"\r"])
def test_empty_lines_before_a_request_take_one_step(
    server: Running, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """They were parsed four bytes at a time, and the rest was copied each time."""
    parse, pieces = Connection._parse, []

    def parsing(self: Connection, piece: bytes) -> None:
        pieces.append(piece)
        parse(self, piece)

    monkeypatch.setattr(Connection, "_parse", parsing)
    with connected(server) as connection:
        connection.sendall(line * 10_000 + HEALTH)
        assert read_answer(connection).status == 200
        connection.sendall(line * 10_000 + HEALTH)
        assert read_answer(connection).status == 200
    assert pieces == [HEALTH, HEALTH] or sum(map(len, pieces)) == 2 * len(
        HEALTH
    )  # a head may arrive in parts
    with connected(server) as connection:
        connection.sendall(line * 70_000)
        assert read_all(connection)[9:12] in (b"431", b"")  # b"": reset while the rest was arriving
    assert len(pieces) < 20


def test_parameters_have_a_number(server: Running) -> None:
    few = "&".join(f"filter{n}=1" for n in range(99))
    assert server.client.get(f"{ONE}/search?{few}&q=river").status_code == 422  # unknown ones
    answer = server.client.get(f"{ONE}/search?{'a&' * 20_000}q=river")
    assert answer.status_code == 422
    assert answer.json()["detail"] == "the address exceeds the limit of 100 parameters"


@pytest.mark.parametrize("part", ["filter", "sort", "query", "by"])
def test_a_refusal_can_quote_a_lone_surrogate(server: Running, part: str) -> None:
    for value in (
        r"\ud800 = 1",
        r"n in (\ud800)",
        r"'\ud800' = '\udfff'",
        r"\"\ud800\"",
        r"+\ud800:x",
        r"n \ud800",
    ):
        body = json.dumps({"query": "river", "k": 3})[:-1] + f', "{part}": "{value}"}}'
        answer = server.client.post(
            f"{ONE}/search", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (200, 422, 400), answer.text
        if part == "filter":
            assert answer.status_code == 422, answer.text


def test_empty_lines_of_an_upload_cost_little() -> None:
    """Each took microseconds in a loop of its own: 60 MB of them kept the only writer busy for minutes."""
    calls: list[None] = []
    body = b"\n" * 25_000 + b'{"id": "a", "text": "river"}\n' + b"\r\n" * 25_000
    found = list(uploads.read(io.BytesIO(body), go_on=lambda: calls.append(None)))
    assert [document.doc_id for document in found] == ["a"]
    assert len(calls) == 1 + 50_001 // 10_000
    with pytest.raises(BadLine, match=r"line 25,?001"):
        list(uploads.read(io.BytesIO(b"\n" * 25_000 + b"nothing")))
