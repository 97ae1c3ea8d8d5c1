"""How a server stops: what it finishes, what it gives up, and what it says."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from coil.indexes.opening import create
from tests.hash_encoder import HashEncoder
from tests.raw_http import read_answer, wait_until
from tests.serving import TOKEN
from tests.test_service import ONE
from tests.test_service_concurrency import start


@contextmanager
def with_an_upload(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A server in a process of its own that is receiving documents."""
    folder = tmp_path / "notes.coil"
    create(folder, encoder=HashEncoder()).close()
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    process, url = start(str(folder), "--token-file", str(tmp_path / "token"))
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as client:
        client.sendall(
            f"POST {ONE}/documents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Length: 28\r\n\r\n{{".encode()
        )
        wait_until(lambda: "coil_requests_in_flight 2.0" in httpx.get(f"{url}metrics", timeout=20).text)
        yield process, client


def test_a_second_interruption_gives_up_at_once_and_leaves_no_traceback(tmp_path: Path) -> None:
    with with_an_upload(tmp_path) as (process, client):
        process.send_signal(signal.SIGINT)
        wait_until(lambda: not is_listening(client))
        process.send_signal(signal.SIGINT)
        assert read_answer(client).status == 503
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    *logged, last = [line for line in err.splitlines() if line]
    assert last == "coil: interrupted"
    assert {json.loads(line)["level"] for line in logged} == {"info"}, err


def is_listening(client: socket.socket) -> bool:
    """Whether the server at the other end of a connection takes further ones."""
    try:
        socket.create_connection(client.getpeername(), timeout=20).close()
    except ConnectionError:
        return False
    return True


def test_a_server_started_with_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does; it is inherited
    try:
        with with_an_upload(tmp_path) as (process, client):
            process.send_signal(signal.SIGHUP)
            assert is_listening(client)
            client.sendall(b'"id": "a", "text": "river"}')
            assert read_answer(client).status == 200
            assert is_listening(client)
            process.terminate()
            process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        signal.signal(signal.SIGHUP, before)
