"""What attackers found: each of these once took the server down, lost a write or told something false."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from coil.cli import serve
from coil.cli.main import run
from coil.errors import DamagedManifest, InputError
from coil.indexes.opening import create, open_index
from coil.service import names, service, uploads
from coil.service.batches import BatchTurns
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.problems import Problem, check_values
from coil.storage.lock import writer_lock
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.raw_http import connected, read_answer
from tests.serving import TOKEN, running
from tests.test_service import ONE, WRITE, build
from tests.test_service_concurrency import start


@pytest.mark.parametrize("pieces", [1, 40])
def test_a_body_survives_a_wish_to_upgrade(tmp_path: Path, pieces: int) -> None:
    """As `curl --http2` and other clients send it; if the head comes in parts, it may be refused."""
    line = json.dumps({"id": "h2c", "text": "river"}).encode()
    request = (
        f"POST {ONE}/documents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAA\r\n"
        f"Content-Length: {len(line)}\r\n\r\n"
    ).encode() + line
    with running([build(tmp_path / "notes.coil", 3)], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        with connected(server) as connection:
            size = -(-len(request) // pieces)
            for begin in range(0, len(request), size):
                connection.sendall(request[begin : begin + size])
                time.sleep(0.001 * (pieces > 1))
            status = read_answer(connection).status
        there = server.client.get(f"{ONE}/documents/h2c").status_code
        allowed = [(200, 200)] if pieces == 1 else [(200, 200), (400, 404)]
        assert (status, there) in allowed


def test_a_list_of_a_million_mistakes_costs_no_more_than_one(tmp_path: Path) -> None:
    body = b'{"queries":[' + b",".join([b"1"] * 500_000) + b"]}"
    with running([build(tmp_path / "notes.coil", 3)], ServiceOptions(), HashEncoder()) as server:
        began = time.process_time()
        answer = server.client.post(
            f"{ONE}/search_batch", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 422
        assert len(answer.content) < 2000
        assert time.process_time() - began < 2  # of this process, which serves; it was five seconds


def test_a_stop_gives_up_a_long_upload_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CHANGES_MAY_TAKE", 0.0)

    class Slow(HashEncoder):
        def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
            for vectors in super().encode_documents(texts):
                time.sleep(0.003)
                yield vectors

    folder = build(tmp_path / "notes.coil", 3)
    lines = "\n".join(json.dumps({"id": f"n{i}", "text": "river"}) for i in range(5000))
    found: list[httpx.Response] = []
    with running([folder], ServiceOptions(token=TOKEN), Slow()) as server:

        def upload() -> None:
            found.append(server.client.post(f"{ONE}/documents", content=lines, headers=WRITE, timeout=60))

        client = threading.Thread(target=upload)
        client.start()
        while (
            not server.service._readiness.is_warming_up
            and not found
            and not server.service.served["notes"].writes_waiting
        ):
            time.sleep(0.01)
        time.sleep(0.3)
        began = time.monotonic()
        server.service.begin_to_stop()
        client.join(60)
        assert time.monotonic() - began < 10
        [answer] = found
        assert answer.status_code == 503
        assert "stopping" in answer.json()["detail"]
    with open_index(folder, HashEncoder()) as index:
        assert len(index) == 3


def test_a_signal_at_any_moment_of_the_start_stops_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "notes.coil"
    create(folder, encoder=HashEncoder()).close()
    process, _ = start(str(folder))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_an_upload_that_cannot_be_stored_or_served_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ServiceOptions(token=TOKEN, limits=ServiceLimits(upload_bytes=64 << 20))
    with running([build(tmp_path / "notes.coil", 3)], options, HashEncoder()) as server:
        many = b'{"id":"a","text":"river","a":[' + b",".join([b"[]"] * 400_000) + b"]}"
        answer = server.client.post(f"{ONE}/documents", content=many, headers=WRITE)
        assert answer.status_code == 422
        assert "exceeds the limit of" in answer.json()["detail"]
        long = b'{"id":"a","text":"river","a":"' + b"x" * (17 << 20) + b'"}'
        answer = server.client.post(f"{ONE}/documents", content=long, headers=WRITE)
        assert answer.status_code == 422
        assert "exceeds the limit of 16,777,216 bytes" in answer.json()["detail"]


def test_a_full_temporary_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __init__(self, **_: object) -> None:
            pass

        def write(self, _: bytes) -> None:
            raise OSError(28, os.strerror(28))

        def close(self) -> None:
            pass

    async def body() -> AsyncIterator[bytes]:
        yield b"{}"

    monkeypatch.setattr(uploads, "SpooledTemporaryFile", Full)
    with pytest.raises(Problem, match="cannot be stored"):
        asyncio.run(uploads.receive(body()))


def test_something_else_in_the_place_of_the_manifest(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 3)
    manifest = folder / "manifest.jsonl"
    kept = manifest.read_bytes()
    with open_index(folder, HashEncoder()) as index:
        for replace in (manifest.mkdir, lambda: os.mkfifo(manifest)):
            manifest.unlink()
            replace()
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                with pytest.raises(DamagedManifest):
                    index.refresh()
            assert len(os.listdir("/proc/self/fd")) == before
            if manifest.is_dir():
                manifest.rmdir()
                manifest.touch()
        manifest.unlink()
        manifest.write_bytes(kept)
        assert index.search("river")


def test_the_last_document_of_an_id_counts(tmp_path: Path) -> None:
    sent = [
        ("a", ""),
        ("a", "river"),
        ("b", "bank"),
        ("b", ""),
        ("c", "money"),
        ("c", "loan"),
        ("d", ""),
        ("d", " "),
    ]
    lines = "\n".join(json.dumps({"id": doc_id, "text": text}) for doc_id, text in sent)
    with running([build(tmp_path / "notes.coil", 3)], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        answer = server.client.post(f"{ONE}/documents", content=lines, headers=WRITE)
        assert answer.json() == {"added": 2, "empty": ["b", "d"], "documents": 5}
        assert server.client.get(f"{ONE}/documents/c").json()["text"] == "loan"


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "chunked, chunked", "identity"])
def test_another_transfer_coding_is_refused(tmp_path: Path, coding: str) -> None:
    line = json.dumps({"id": "coded", "text": "river"}).encode()
    request = (
        f"POST {ONE}/documents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Transfer-Encoding: {coding}\r\n\r\n{len(line):x}\r\n"
    ).encode() + line
    with running([build(tmp_path / "notes.coil", 3)], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        with connected(server) as connection:
            connection.sendall(request + b"\r\n0\r\n\r\n")
            assert read_answer(connection).problem()["status"] in (400, 501)
        assert server.client.get(f"{ONE}/documents/coded").status_code == 404


def test_many_unknown_keys_cost_no_more_than_a_few(tmp_path: Path) -> None:
    keys = {"query": "river", **dict.fromkeys(map(str, range(9_000)), 0)}
    body = json.dumps(keys, separators=(",", ":")).encode()
    headers = {"content-type": "application/json"}
    with running([build(tmp_path / "notes.coil", 3)], ServiceOptions(), HashEncoder()) as server:
        server.client.post(f"{ONE}/search", content=b"{}", headers=headers)
        began = time.process_time()
        answer = server.client.post(f"{ONE}/search", content=body, headers=headers)
        spent = time.process_time() - began
    assert answer.status_code == 422
    assert answer.json()["detail"] == "unknown keys '0', '1', '2', '3', '4'"
    assert spent < 0.4  # of this process, which serves


def test_a_locked_index_is_no_error_of_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = build(tmp_path / "notes.coil", 3)
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server, writer_lock(folder):
        caplog.clear()
        caplog.set_level("INFO", "coil.service")
        answer = server.client.delete(f"{ONE}/documents/d/1", headers=WRITE)
        assert answer.status_code == 409
    assert [record.levelname for record in caplog.records if record.msg == "refused"] == ["INFO"]


@pytest.mark.parametrize("zeros", [0, 10, 5000])
def test_a_content_length_of_thousands_of_digits(tmp_path: Path, zeros: int) -> None:
    body = b'{"query": "river"}'
    request = (
        f"POST {ONE}/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {'0' * zeros}{len(body)}\r\n\r\n"
    ).encode() + body
    with (
        running([build(tmp_path / "notes.coil", 3)], ServiceOptions(), HashEncoder()) as server,
        connected(server) as connection,
    ):
        connection.sendall(request)
        answer = read_answer(connection)
        if zeros < 5000:
            assert answer.status == 200
        else:
            assert answer.status == 400
            assert answer.problem()["detail"] == "the Content-Length has 5,002 characters"


def test_hosts_are_allowed_by_name_in_any_case_and_with_any_port() -> None:
    for given, expected in {
        "Example.ORG": "example.org",
        "a-b.c_d": "a-b.c_d",
        "::1": "[::1]",
        "[FE80:0::1]": "[fe80::1]",
        "10.0.0.1": "10.0.0.1",
    }.items():
        assert names.host_name(given) == expected
    with pytest.raises(InputError, match="includes a port") as found:
        names.host_name("example.org:8080")
    assert found.value.remedy == "write --allow-host example.org"
    for given in ("https://example.org", "*", "*.example.org", "", "a b", "example.org/", "[::1]:80", "a..b"):
        with pytest.raises(InputError):
            names.host_name(given)


def options_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> ServiceOptions:
    """The options of a server that would be started so."""
    found: list[ServiceOptions] = []
    monkeypatch.setattr(serve, "serve", lambda folders, host, port, options, models: found.append(options))
    assert run(["serve", "notes.coil", *arguments]) == 0
    return found[0]


def test_an_allowed_host_is_accepted_on_every_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(monkeypatch, "--host", "0.0.0.0", "--allow-host", "Example.org")
    with running([build(tmp_path / "notes.coil", 3)], options, HashEncoder()) as server:
        for host, status in (("example.org", 200), ("EXAMPLE.ORG:8080", 200), ("other.org", 421)):
            assert server.client.get("/health", headers={"Host": host}).status_code == status


def test_pages_of_allowed_origins_can_read_refusals(tmp_path: Path) -> None:
    options = ServiceOptions(limits=ServiceLimits(body_bytes=10), origins=("https://page.example",))
    with running([build(tmp_path / "notes.coil", 3)], options, HashEncoder()) as server:
        for host, body, status in (("localhost", b" " * 11, 413), ("other.example", b"", 421)):
            for origin, seen in (("https://page.example", "https://page.example"), ("https://evil", None)):
                headers = {"Host": host, "Origin": origin}
                got = server.client.post(f"{ONE}/search", content=body, headers=headers)
                assert got.status_code == status
                assert got.headers.get("access-control-allow-origin") == seen
                if seen:
                    assert got.headers["access-control-expose-headers"] == "X-Request-Id, Retry-After"
                    assert got.headers["vary"] == "Origin"


def test_origins_are_written_as_browsers_send_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, expected in {
        "https://A.example/": "https://a.example",
        "HTTPS://a.example:443": "https://a.example",
        "http://a.example:8080": "http://a.example:8080",
        "http://[::1]:3000": "http://[::1]:3000",
        "*": "*",
        "null": "null",
    }.items():
        assert options_of(monkeypatch, "--allow-origin", given).origins == (expected,)
    for given in ("a.example", "https://a.example/page", "https://*.example", "https://", "http://a:b", "/x"):
        with pytest.raises(InputError, match="is not the origin of a page"):
            names.origin(given)


def test_a_question_of_very_many_values_is_refused_unparsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing it would hold up the event loop."""
    texts = {"queries": ['[{,\\"' * 400] * 50}  # brackets within texts do not count
    with running([build(tmp_path / "notes.coil")], ServiceOptions(), HashEncoder()) as server:
        headers = {"Content-Type": "application/json"}
        for values in ("[]", "{}", "0", '""', '{"a":0}'):
            body = '{"queries": [' + ",".join([values] * 20_000) + "]}"
            for address in ("search", "search_batch", "explain"):
                got = server.client.post(f"{ONE}/{address}", content=body, headers=headers)
                assert got.status_code == 422
                assert got.json()["detail"] == "the body exceeds the limit of 10,000 values"
        assert server.client.post(f"{ONE}/search_batch", json=texts).status_code == 200


@pytest.mark.parametrize("rest", ['\\"', "\\\\", '\\""\\"', "\\", '"\\'])
def test_a_string_that_never_ends_is_read_once(rest: str) -> None:
    """Looked for from each of its quotes, the end of a string took minutes, and no other thread ran."""
    body = ("[" + "," * 10_001 + '"' + rest * 20_000).encode()
    began = time.monotonic()
    with pytest.raises(Problem, match="exceeds the limit of 10,000 values"):
        check_values(body)
    assert time.monotonic() - began < 1


def test_every_id_can_be_reached_by_its_path(tmp_path: Path) -> None:
    options = ServiceOptions(token=TOKEN)
    with running([build(tmp_path / "notes.coil", 3)], options, HashEncoder()) as server:
        ids = ["n\nl", "end\n", "\n", "\ufffd", "a/b?c#d", " "]
        lines = "\n".join(json.dumps({"id": doc_id, "text": "river"}) for doc_id in ids)
        assert server.client.post(f"{ONE}/documents", content=lines, headers=WRITE).json()["added"] == 6
        for address in ("/%ff", "?doc_id=%ff"):  # not the document whose id is U+FFFD
            for wrong in (
                server.client.get(f"{ONE}/documents{address}"),
                server.client.delete(f"{ONE}/documents{address}", headers=WRITE),
            ):
                assert wrong.status_code == 400
                assert wrong.json()["detail"] == "the address is not UTF-8"
        for doc_id in ids:
            address = f"{ONE}/documents/{quote(doc_id, safe='')}"
            assert server.client.get(address).json()["doc_id"] == doc_id
            assert server.client.delete(address, headers=WRITE).json()["deleted"] == 1


def test_a_wrong_method_is_told_every_right_one(tmp_path: Path) -> None:
    with running([build(tmp_path / "notes.coil", 3)], ServiceOptions(), HashEncoder()) as server:
        for address, methods in (
            ("search", "GET, HEAD, POST"),
            ("search_batch", "POST"),
            ("documents/a", "DELETE, GET, HEAD"),
        ):
            got = server.client.put(f"{ONE}/{address}")
            assert (got.status_code, got.headers["allow"]) == (405, methods)


def test_a_batch_whose_client_is_gone_gets_no_turn() -> None:
    async def run() -> list[str]:
        turns, done = BatchTurns(1, 10), []

        async def batch(name: str, is_gone: bool) -> None:
            def gone() -> bool:
                return is_gone

            async with turns.turn(time.monotonic() + 20, 2, gone):
                done.append(name)

        batches = [batch("first", False), batch("gone", True), batch("last", False)]
        found = await asyncio.gather(*batches, return_exceptions=True)
        assert [type(result).__name__ for result in found] == ["NoneType", "ClientDisconnect", "NoneType"]
        return done

    assert asyncio.run(run()) == ["first", "last"]
