"""`coil serve`: indexes over HTTP, and the page."""

from __future__ import annotations

import os
import stat
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from coil.errors import InputError, how_many, require
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.vectors.encoder import Encoder

DEFAULTS = ServiceLimits()


@click.command("serve")
@click.argument("indexes", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="INDEX...")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free one."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen. The default is reached from this machine alone; 0.0.0.0 from all others, too.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="FOLDER",
    help="Where a model is now that is no longer where it was; may be repeated.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Allow changes to those who send the token in this file; without it the server only reads.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages from there (https://example.org) read answers; may be repeated.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Answer to this name, too, as behind a proxy; may be repeated.",
)
@click.option(
    "--threads", type=click.IntRange(min=0), default=0, help="That search; 0, the default: one a core."
)
@click.option("--log-queries", is_flag=True, help="Write what people search for into the log.")
@click.option(
    "--max-query",
    type=click.IntRange(min=1),
    default=DEFAULTS.query_characters,
    show_default=True,
    help="Characters.",
)
@click.option("--max-k", type=click.IntRange(min=1), default=DEFAULTS.k, show_default=True, help="Hits.")
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=DEFAULTS.batch_queries,
    show_default=True,
    help="Queries at once.",
)
@click.option(
    "--max-body",
    type=click.IntRange(min=1),
    default=DEFAULTS.body_bytes >> 20,
    show_default=True,
    help="MiB of a request.",
)
@click.option(
    "--max-upload",
    type=click.IntRange(min=1),
    default=DEFAULTS.upload_bytes >> 20,
    show_default=True,
    help="MiB of documents.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULTS.seconds,
    show_default=True,
    help="For one request that reads; its search stops then.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=1),
    default=DEFAULTS.waiting,
    show_default=True,
    help="Requests in the queue; the next one gets 503.",
)
def command(
    indexes: tuple[Path, ...],
    port: int,
    host: str,
    models: tuple[str, ...],
    token_file: Path | None,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    threads: int,
    log_queries: bool,
    max_query: int,
    max_k: int,
    max_batch: int,
    max_body: int,
    max_upload: int,
    max_seconds: float,
    max_waiting: int,
) -> None:
    """Serve indexes over HTTP, and a page to search them.

    Each index has the name of its folder without .coil. The server only reads unless there is a token, and
    only this machine can reach it unless --host says otherwise. It writes one JSON line a request to standard
    error, without what people searched for. Ctrl-C or SIGTERM stops it when running requests are answered.

    \b
      coil serve notes.coil
      coil serve notes.coil papers.coil --port 0
      coil serve notes.coil --token-file token.txt       # and then
      curl -H "Authorization: Bearer $(cat token.txt)" --data-binary @more.jsonl \\
           http://127.0.0.1:8080/v1/indexes/notes/documents
    """
    limits = ServiceLimits(
        query_characters=max_query,
        k=max_k,
        batch_queries=max_batch,
        body_bytes=max_body << 20,
        upload_bytes=max_upload << 20,
        seconds=max_seconds,
        waiting=max_waiting,
    )
    options = ServiceOptions(
        limits=limits,
        threads=threads,
        token=read_token(token_file) if token_file is not None else None,
        hosts=hosts,
        origins=origins,
        log_queries=log_queries,
    )
    serve(indexes, host, port, options, models=models)


def check_installed() -> None:
    """Say which extra to install before anything else is done."""
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        require(module, "serve")


def serve(
    folders: Sequence[Path],
    host: str,
    port: int,
    options: ServiceOptions,
    encoder: Encoder | None = None,
    open_browser: bool = False,
    models: Sequence[str] = (),
) -> None:
    """Everything after the options: open the indexes, listen, answer until the end.

    `encoder` is for indexes of a model that they cannot name; None lets each take its own.
    """
    check_installed()
    from coil.service.logs import log_as_json
    from coil.service.served import open_all
    from coil.service.server import LOOPBACK_NAMES, address_of, is_loopback, listen, run_server
    from coil.service.service import Service

    if is_loopback(host):
        names = tuple(name.lower() for name in (*LOOPBACK_NAMES, *options.hosts))
        options = replace(options, hosts=(*names, f"[{host}]" if ":" in host else host.lower()))
    served = open_all(folders, options.limits.writes_waiting, encoder, models)
    listening = listen(host, port)
    address = address_of(listening)

    def began() -> None:
        for name, index in served.items():
            click.echo(f"serving {name}: {how_many(len(index.index), 'document')}")
        reach = (
            "only this machine can reach it" if address.is_loopback else "other machines can reach it, too"
        )
        writing = "changes need the token" if options.token is not None else "nothing can be changed"
        click.echo(f"open {address.url} ({reach}; {writing}; Ctrl-C stops it)")
        if open_browser and has_desktop():
            webbrowser.open(address.url)

    log_as_json()
    run_server(Service(served, options), listening, began)


def read_token(path: Path) -> str:
    """The token of a file: its only line."""
    try:
        token = path.read_text(encoding="utf-8").strip()
        mode = path.stat().st_mode
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text", "write the token into it, one line") from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}", "check the path and its rights"
        ) from error
    if not token or len(token.split()) > 1:
        raise InputError(
            f"{path} must hold one token without spaces, it holds {'nothing' if not token else 'more'}",
            f"openssl rand -hex 32 > {path}",
        )
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        click.echo(f"warning: others on this machine can read {path}; chmod 600 {path}", err=True)
    return token


def has_desktop() -> bool:
    """Whether somebody sits at this terminal who would see a browser open."""
    window = (
        sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return sys.stdout.isatty() and bool(window)
