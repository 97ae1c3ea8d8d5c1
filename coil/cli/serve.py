"""`coil serve`: serves indexes over HTTP, with a search page."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from coil.cli.numbers import FiniteRange
from coil.cli.token_file import read_token
from coil.errors import how_many, require
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.names import host_name, origin
from coil.service.readable import Served
from coil.storage.memory import MOST_THREADS
from coil.vectors.encoder import Encoder

DEFAULTS = ServiceLimits()


@click.command("serve")
@click.argument("indexes", nargs=-1, required=True, type=click.Path(), metavar="INDEX...")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on (0 = any free port).",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. 127.0.0.1 accepts connections from this machine only, 0.0.0.0 from any.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="FOLDER",
    help="Folder of a model that has moved since an index was built; may be repeated.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Allow changes by clients that send the token in this file; without it the server is read-only.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="ORIGIN",
    help="Let web pages from this origin, such as https://example.org, read responses; may be repeated.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Also accept requests for this host name, such as a proxy's, with any port; may be repeated.",
)
@click.option(
    "--threads",
    type=click.IntRange(0, MOST_THREADS),
    default=0,
    show_default=True,
    help="Search threads (0 = one per core).",
)
@click.option(
    "--ray",
    metavar="ADDRESS|local",
    help="Serve sharded indexes on the Ray cluster whose head node has this address (HOST:PORT or auto), or "
    "on one that is started on this machine.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="R",
    help="With --ray: copies of each shard; with 2 or more, requests succeed even if one copy dies. "
    "[default: 1]",
)
@click.option(
    "--partial",
    is_flag=True,
    help="With --ray: answer without shards that do not respond, and say so; otherwise such requests fail.",
)
@click.option("--log-queries", is_flag=True, help="Include query texts in the log.")
@click.option(
    "--max-query",
    type=click.IntRange(min=1),
    default=DEFAULTS.query_characters,
    show_default=True,
    help="Maximum number of characters in a query.",
)
@click.option(
    "--max-k",
    type=click.IntRange(min=1),
    default=DEFAULTS.k,
    show_default=True,
    help="Maximum number of hits.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    default=DEFAULTS.batch_queries,
    show_default=True,
    help="Maximum number of queries in a batch.",
)
@click.option(
    "--max-body",
    type=click.IntRange(min=1),
    default=DEFAULTS.body_bytes >> 20,
    show_default=True,
    help="Maximum size of a request in MiB.",
)
@click.option(
    "--max-upload",
    type=click.IntRange(min=1),
    default=DEFAULTS.upload_bytes >> 20,
    show_default=True,
    help="Maximum size of an upload of documents in MiB.",
)
@click.option(
    "--max-answer",
    type=click.IntRange(min=1),
    default=DEFAULTS.answer_bytes >> 20,
    show_default=True,
    help="Maximum size of a response in MiB; all pending responses together may take four times as much.",
)
@click.option(
    "--max-seconds",
    type=FiniteRange(min=0, max=1_000_000, min_open=True),
    default=DEFAULTS.seconds,
    show_default=True,
    help="Time limit for a read request in seconds; a search that exceeds it is stopped.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=1),
    default=DEFAULTS.waiting,
    show_default=True,
    help="Maximum number of queued requests; further ones get 503.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    default=DEFAULTS.connections,
    show_default=True,
    help="Maximum number of connections with a request; further requests get 503.",
)
@click.option(
    "--max-idle",
    type=click.IntRange(min=1),
    default=DEFAULTS.idle_seconds,
    show_default=True,
    help="Seconds that an idle connection is kept open.",
)
def command(
    indexes: tuple[str, ...],
    port: int,
    host: str,
    models: tuple[str, ...],
    token_file: Path | None,
    origins: tuple[str, ...],
    hosts: tuple[str, ...],
    threads: int,
    ray: str | None,
    replicas: int | None,
    partial: bool,
    log_queries: bool,
    max_query: int,
    max_k: int,
    max_batch: int,
    max_body: int,
    max_upload: int,
    max_answer: int,
    max_seconds: float,
    max_waiting: int,
    max_connections: int,
    max_idle: int,
) -> None:
    """Serve indexes over HTTP, with a page to search them.

    Each index has the name of its folder without .coil. The server is read-only without --token-file and
    reachable from this machine only without --host. It writes one JSON line per request to standard error,
    without query texts. Ctrl-C or SIGTERM stops it after the running requests are answered.

    --ray (requires the ray extra) serves indexes that were built with `coil index --ray`: Ray Serve runs
    --replicas copies of each shard and replaces those that die, and this process answers HTTP requests. If a
    served index is replaced (for example by changing a symbolic link), the new one takes over without
    interruption.

    \b
      coil serve notes.coil
      coil serve notes.coil papers.coil --port 0
      coil serve notes.coil --token-file token.txt       # and then
      curl -H "Authorization: Bearer $(cat token.txt)" --data-binary @more.jsonl \\
           http://127.0.0.1:8080/v1/indexes/notes/documents
      coil serve passages.shards --ray 10.0.0.1:6379 --replicas 2
    """
    limits = ServiceLimits(
        query_characters=max_query,
        k=max_k,
        batch_queries=max_batch,
        body_bytes=max_body << 20,
        upload_bytes=max_upload << 20,
        answer_bytes=max_answer << 20,
        unsent_bytes=max_answer << 22,
        seconds=max_seconds,
        waiting=max_waiting,
        connections=max_connections,
        idle_seconds=max_idle,
    )
    options = ServiceOptions(
        limits=limits,
        threads=threads,
        token=read_token(token_file) if token_file is not None else None,
        hosts=tuple(host_name(name) for name in hosts),
        origins=tuple(origin(name) for name in origins),
        log_queries=log_queries,
    )
    if ray is None and (replicas is not None or partial):
        raise click.UsageError("--replicas and --partial require --ray.")
    if ray is None:
        serve([Path(index) for index in indexes], host, port, options, models=models)
        return
    check_installed()
    from coil.cli.deploying import serving_on_ray

    with serving_on_ray(indexes, ray, replicas or 1, partial, models, options.limits) as served:
        serve_opened(served, host, port, options)


def check_installed() -> None:
    """If a package is missing, say which extra to install before doing anything else."""
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
    """Open the indexes, listen, and answer requests until the server is stopped.

    `encoder` is for indexes whose model has no name or folder; if it is None, each index loads its own model.
    """
    check_installed()
    from coil.service.served import open_all

    served = open_all(folders, options.limits.writes_waiting, encoder, models)
    serve_opened(served, host, port, options, open_browser)


def serve_opened(
    served: Mapping[str, Served], host: str, port: int, options: ServiceOptions, open_browser: bool = False
) -> None:
    """Listen, and answer requests about open indexes until the server is stopped."""
    from coil.service.logs import log_as_json
    from coil.service.server import address_of, fit_to_files, hosts_of, listen, run_server
    from coil.service.service import Service

    limits = fit_to_files(options.limits)
    if limits.connections < options.limits.connections:
        click.echo(
            f"warning: the limit on open files allows only {limits.connections:,} connections, not "
            f"{options.limits.connections:,}; raise it (ulimit -n), or lower --max-connections",
            err=True,
        )
        options = replace(options, limits=limits)
    listening = listen(host, port)
    address = address_of(listening)
    options = replace(options, hosts=(*options.hosts, *hosts_of(address, host)))

    def began() -> None:
        reach = "reachable from this machine only" if address.is_loopback else "reachable from other machines"
        writing = "changes require the token" if options.token is not None else "read-only"
        with suppress(OSError):  # nobody may be reading
            for name, index in served.items():
                with index.reading() as reader:
                    click.echo(f"serving {name}: {how_many(len(reader), 'document')}")
            click.echo(f"open {address.url} ({reach}; {writing}; stop with Ctrl-C)")
        if open_browser and has_desktop():
            webbrowser.open(address.url)

    log = log_as_json()
    try:
        run_server(Service(served, options), listening, began)
    finally:
        log.close()


def has_desktop() -> bool:
    """Whether a browser window opened here would be visible."""
    window = (
        sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    return sys.stdout.isatty() and bool(window)
