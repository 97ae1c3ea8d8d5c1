"""A real server on a loopback port, in a thread, for tests to talk to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from coil.service.limits import ServiceOptions
from coil.service.readable import Served
from coil.service.served import open_all
from coil.service.server import LOOPBACK_NAMES, address_of, listen, make_server
from coil.service.service import Service
from coil.vectors.encoder import Encoder

TOKEN = "a-token-for-tests"


@dataclass(frozen=True)
class Running:
    """A server that runs, and a client that talks to it."""

    url: str
    client: httpx.Client
    service: Service


@contextmanager
def running(
    folders: Sequence[Path], options: ServiceOptions | None = None, encoder: Encoder | None = None
) -> Iterator[Running]:
    """Serve indexes while the block runs; `encoder` None is the bundled model."""
    options = options if options is not None else ServiceOptions()
    with running_opened(open_all(folders, options.limits.writes_waiting, encoder), options) as server:
        yield server


@contextmanager
def running_opened(served: Mapping[str, Served], options: ServiceOptions) -> Iterator[Running]:
    """Serve indexes that are open while the block runs."""
    options = options if options.hosts else replace(options, hosts=LOOPBACK_NAMES)
    service = Service(served, options)
    listening = listen("127.0.0.1", 0)
    began = threading.Event()
    server = make_server(service, began.set)
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
    thread.start()
    assert began.wait(30)
    url = address_of(listening).url
    try:
        with httpx.Client(base_url=url, timeout=30) as client:
            yield Running(url, client, service)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
