"""Names of hosts as browsers send them: written otherwise, they would never match."""

from __future__ import annotations

import ipaddress
import re

from coil.errors import InputError

_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_WITH_PORT = re.compile(r"([^:]+|\[.*\]):\d*")


def host_name(given: str) -> str:
    """The name of a host without a port, as a Host header has it."""
    if (found := _WITH_PORT.fullmatch(given)) is not None:
        raise InputError(
            f"the host {given!r} has a port; requests are accepted whatever their port",
            f"write --allow-host {found.group(1)}",
        )
    name = _host(given.lower())
    if name is None:
        raise InputError(
            f"{given!r} is not the name of a host", "write it as in an address: --allow-host example.org"
        )
    return name


def _host(name: str) -> str | None:
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name if _NAME.fullmatch(name) else None
    return f"[{address}]" if address.version == 6 else str(address)
