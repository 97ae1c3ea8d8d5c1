"""Names of hosts and origins, normalized as browsers send them; otherwise they would never match."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import urlsplit

from coil.errors import InputError

EXPOSED = ("X-Request-Id", "Retry-After")  # headers that pages of allowed origins can read
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_WITH_PORT = re.compile(r"([^:]+|\[.*\]):\d*")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def host_name(given: str) -> str:
    """The name of a host without a port, as in a Host header."""
    if (found := _WITH_PORT.fullmatch(given)) is not None:
        raise InputError(
            f"the host {given!r} includes a port; requests are accepted on any port",
            f"write --allow-host {found.group(1)}",
        )
    name = _host(given.lower())
    if name is None:
        raise InputError(
            f"{given!r} is not a host name", "use the name as in a URL: --allow-host example.org"
        )
    return name


def origin(given: str) -> str:
    """The origin of pages, as in an Origin header; `*` means any."""
    if given in ("*", "null"):
        return given
    try:
        parts = urlsplit(given.lower())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    name = _host(parts.hostname or "")
    if (
        not parts.scheme
        or name is None
        or parts.path not in ("", "/")
        or "@" in given
        or set("?#") & set(given)
    ):
        raise InputError(
            f"{given!r} is not the origin of a page",
            "use scheme, host and optionally a port: --allow-origin https://example.org",
        )
    shown = "" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}"
    return f"{parts.scheme}://{name}{shown}"


def let_read(given: str, allowed: Sequence[str]) -> dict[str, str]:
    """The headers that let a page read an answer, whose request had this Origin header ("" for none)."""
    if not given or not {given, "*"} & set(allowed):
        return {}
    return {
        "Access-Control-Allow-Origin": "*" if "*" in allowed else given,
        "Access-Control-Expose-Headers": ", ".join(EXPOSED),
        "Vary": "Origin",
    }


def _host(name: str) -> str | None:
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name if _NAME.fullmatch(name) else None
    return f"[{address}]" if address.version == 6 else str(address)
