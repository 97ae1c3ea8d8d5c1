"""kill -9 on a server under load, again and again: no write that it acknowledged is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from coil.indexes.opening import create, open_index
from tests.hash_encoder import HashEncoder
from tests.raw_http import wait_until
from tests.serving import TOKEN
from tests.test_service import ONE, WRITE
from tests.test_service_concurrency import start

ROUNDS = int(os.environ.get("COIL_CRASH_ROUNDS", "4"))  # `make soak` asks for more


def test_no_acknowledged_write_is_lost(tmp_path: Path, soaked: Callable[..., None]) -> None:
    rng = random.Random(11)
    folder, token = tmp_path / "notes.coil", tmp_path / "token"
    create(folder, encoder=HashEncoder()).close()
    token.write_text(TOKEN)
    token.chmod(0o600)
    there: set[str] = set()  # added and acknowledged, and never asked to be deleted
    gone: set[str] = set()  # deleted and acknowledged

    def write(url: str, name: str) -> None:
        """Add documents, sometimes delete one of them, until the server is dead."""
        with httpx.Client(base_url=url, timeout=30, headers=WRITE) as client:
            for number in range(10**6):
                doc_id = f"{name}-{number}"
                try:
                    line = json.dumps({"id": doc_id, "text": f"river bank {number}"})
                    if client.post(f"{ONE}/documents", content=line).status_code == 200:
                        there.add(doc_id)
                    if number % 5 == 4:
                        there.discard(doc_id)
                        if client.delete(f"{ONE}/documents/{doc_id}").status_code == 200:
                            gone.add(doc_id)
                    client.get(f"{ONE}/search", params={"q": "river bank"})
                except httpx.TransportError:
                    return

    for turn in range(ROUNDS):
        process, url = start(str(folder), "--token-file", str(token))
        writers = [threading.Thread(target=write, args=(url, f"{turn}-{n}")) for n in range(3)]
        for writer in writers:
            writer.start()
        if turn == 0:
            wait_until(lambda: gone)
        threading.Event().wait(rng.uniform(0.1, 1.0))
        process.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.join(60)
            assert not writer.is_alive()
        process.communicate(timeout=60)
        with open_index(folder, encoder=HashEncoder()) as index:
            index.verify()
            assert not [doc_id for doc_id in there if not index.has(doc_id)]
            assert not [doc_id for doc_id in gone if index.has(doc_id)]
            found = [hit.doc_id for hit in index.search("river bank", k=10**6)]
            assert len(found) == len(set(found)) == len(index)
    assert len(there) > ROUNDS
    assert gone
    soaked("processes killed", kills=ROUNDS)
