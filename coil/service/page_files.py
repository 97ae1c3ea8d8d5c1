"""The files of the search page, read into memory once, so that no path can reach any other file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True)
class PageFile:
    """One file of the page."""

    content: bytes
    media_type: str
    etag: str


def read_page() -> dict[str, PageFile]:
    """The packaged files by name."""
    found = {}
    for entry in files("coil.service").joinpath("page").iterdir():
        kind = TYPES.get("." + entry.name.rsplit(".", maxsplit=1)[-1])
        if kind is not None and entry.is_file():
            content = entry.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:16]
            found[entry.name] = PageFile(content, kind, f'"{digest}"')
    return found
