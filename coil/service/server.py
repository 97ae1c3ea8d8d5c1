"""The server: a socket, uvicorn, and a shutdown that lets running requests finish."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType

import uvicorn

from coil.errors import OutputError
from coil.service.app import make_app
from coil.service.connections import SPARE, Connection, Connections
from coil.service.limits import ServiceLimits
from coil.service.service import Service

if sys.platform != "win32":  # which has no such limits
    import resource

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_SECONDS_TO_STOP = 30
# After each system call, the event loop waits until a search thread lets it go on: by default 5 ms,
# which hundreds of connections at once would each wait for several times.
_SWITCH_SECONDS = 0.0005
_FILES_IN_USE = 64  # if the system does not report how many are open
_FILES_TO_WORK = 32  # that commits, reloads and uploads open for a moment


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The URL to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.host).is_loopback


def hosts_of(address: Address, typed: str) -> tuple[str, ...]:
    """The Host headers accepted on a loopback address, which was `typed` perhaps as another name; on any
    other address none, which accepts them all."""
    if not address.is_loopback:
        return ()
    own = (typed.lower(), address.host)
    return (*LOOPBACK_NAMES, *(f"[{name}]" if ":" in name else name for name in own))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes any free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(512)
        except OSError:
            opened.close()
            raise
    except (OSError, UnicodeError) as error:  # a name with an empty or a long part cannot be encoded
        reason = error.strerror if isinstance(error, OSError) else "this is not a host name"
        raise OutputError(
            f"cannot listen on {host}, port {port}: {reason or error}",
            "choose another one with --port or --host; --port 0 uses any free port",
        ) from error
    return opened


def fit_to_files(limits: ServiceLimits) -> ServiceLimits:
    """The limits, with fewer connections if this process cannot open so many files, even if it tries.

    Without a free file descriptor no connection can be accepted, not even one that asks for /health. So a
    process without room for any is refused.
    """
    if sys.platform == "win32":
        return limits
    try:
        in_use = len(os.listdir("/dev/fd"))
    except OSError:
        in_use = _FILES_IN_USE
    others = in_use + SPARE + _FILES_TO_WORK
    wanted = limits.connections + others
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (-1, resource.RLIM_INFINITY) or soft >= wanted:
        return limits
    raised = wanted if hard in (-1, resource.RLIM_INFINITY) else min(wanted, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    if soft <= others:
        raise OutputError(
            f"this process may open {soft:,} files; serving these indexes requires more than {others:,}",
            "raise the limit (`ulimit -n`), or serve fewer indexes",
        )
    return replace(limits, connections=min(limits.connections, soft - others))


def address_of(listening: socket.socket) -> Address:
    """Where a socket listens; ::ffff:127.0.0.1 is 127.0.0.1, under which clients reach it."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return Address(str(mapped or host), int(port))


def run_server(service: Service, listening: socket.socket, began: Callable[[], object] | None = None) -> None:
    """Serve until SIGTERM, SIGHUP or Ctrl-C; running requests are finished first.

    `began` is called once clients can connect.
    """
    server = make_server(service, began)
    # uvicorn handles the signal once it has begun, and raises it again after it has stopped: that must not
    # end the process with another status. A signal before that stops the server as soon as it has begun.
    numbers = [signal.SIGTERM]
    # A terminal that is closed sends SIGHUP; `nohup` has it ignored, and so do we then. Windows has none.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, server.handle_exit) for number in numbers}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        server.run(sockets=[listening])
    finally:
        sys.setswitchinterval(interval)
        for number, handler in before.items():
            signal.signal(number, handler)


def make_server(service: Service, began: Callable[[], object] | None = None) -> uvicorn.Server:
    """A uvicorn server, not yet started."""
    limits = service.options.limits
    config = uvicorn.Config(
        make_app(service),
        http=partial(Connection, Connections(service.options, service.meters.count_error)),  # type: ignore[arg-type]
        ws="none",
        timeout_keep_alive=limits.idle_seconds,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=_SECONDS_TO_STOP,
    )
    return _Server(config, began, service.begin_to_stop)


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        began: Callable[[], object] | None,
        stopping: Callable[[bool], object],
    ) -> None:
        super().__init__(config)
        self._began, self._stopping = began, stopping

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop: changes that would take longer than the server waits are abandoned.

        After a second Ctrl-C, it waits for nothing.
        """
        again = self.should_exit and sig == signal.SIGINT
        self._stopping(again)
        if again:  # uvicorn would raise it a second time at the end, in the middle of the event loop
            self.force_exit = True
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, finish or abandon what is running, and close the indexes in any case."""
        await super().shutdown(sockets)
        if self.force_exit:
            tasks = list(self.server_state.tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.lifespan.shutdown()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._began is not None and self.started:
            self._began()
