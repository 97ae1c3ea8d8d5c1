"""`coil doctor`: checks the installation."""

from __future__ import annotations

import json
from dataclasses import asdict

import click


@click.command("doctor")
@click.option("--model", metavar="M", help="Check this model instead of the bundled one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per check.")
@click.pass_context
def command(ctx: click.Context, model: str | None, as_json: bool) -> None:
    """Check this installation: the native core, the model, a search, and how fast this machine is.

    Exits with status 1 if a check fails, and prints what to do. Takes a few seconds.

    \b
      coil doctor
      coil doctor --model runs/my-model --json
    """
    from coil.metrics.health import examine

    failed = 0
    for finding in examine(model):
        failed += not finding.ok
        if as_json:
            click.echo(json.dumps(asdict(finding), ensure_ascii=False))
            continue
        click.echo(f"{'ok' if finding.ok else 'FAILED':<8}{finding.name:<16}{finding.detail}")
        if not finding.ok:
            click.echo(f"{'':8}{'':16}try: {finding.remedy}")
    ctx.exit(1 if failed else 0)
