"""`coil bench`: measures search speed on this machine."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import click

from coil.storage.memory import MOST_THREADS


@click.command("bench")
@click.option(
    "--documents", type=click.IntRange(min=1000), default=500_000, show_default=True,
    help="Number of synthetic documents to search; 1,000,000 documents need about 600 MB of memory.",
)  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(1, MOST_THREADS), default=2, show_default=True,
    help="Maximum number of threads.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row.")
def command(documents: int, threads: int, as_json: bool) -> None:
    """Measure exhaustive search on this machine and compare it with NumPy and the roofline.

    The roofline is the time to read the bytes of the lists once: no search that reads all of them can be
    faster. The lists are synthetic, with lengths as in a collection of passages. NumPy runs on one thread.
    The measurement takes less than two minutes.

    \b
      coil bench
      coil bench --documents 1000000 --json
    """
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy is loaded
    from coil.metrics.speed import measure_speed

    click.echo("generating lists and searching them ...", err=True)
    timings = measure_speed(documents, threads=threads, told=lambda what: click.echo(f"  {what}", err=True))
    if as_json:
        for timing in timings:
            click.echo(json.dumps({**asdict(timing), "share_of_roofline": timing.share}))
        return
    slowest = timings[-1].search_ms
    click.echo(f"{documents:,} documents, {timings[0].mentions:,} mentions per query, k = 1000")
    click.echo(f"{'':44}threads  per query  roofline  share  versus NumPy")
    for timing in timings:
        click.echo(
            f"{timing.what:<44}{timing.threads:>7}  {timing.search_ms:>5.1f} ms  {timing.read_ms:>6.1f} ms"
            f"  {timing.share:>4.0%}  {slowest / timing.search_ms:>8.1f} x"
        )
