"""`coil serve --ray`: deploys sharded indexes on a Ray cluster while the server runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import click

from coil.errors import InputError, require
from coil.service.limits import ServiceLimits
from coil.service.readable import Served

_DRAIN = 2.0  # a replaced index is kept for this many times the time limit of a request


@contextmanager
def serving_on_ray(
    indexes: Sequence[str],
    address: str,
    replicas: int,
    partial: bool,
    models: Sequence[str],
    limits: ServiceLimits,
) -> Iterator[dict[str, Served]]:
    """The indexes by name, deployed on a cluster while the block runs."""
    for package in ("ray", "ray.serve", "fsspec"):
        require(package, "ray")
    from coil.cluster.following import Deployed
    from coil.cluster.joining import joined
    from coil.service.served import fit_name
    from coil.service.served_shards import ServedShards
    from coil.shards.places import Place, find_place
    from coil.shards.whole import WHOLE_FILE

    if len(models) > 1:
        raise InputError("--model was given more than once", "with --ray, pass the model of the index")
    served: dict[str, Served] = {}
    with ExitStack() as stack:
        stack.enter_context(joined(address))
        for path in indexes:
            name = fit_name(os.path.basename(path.rstrip("/").removesuffix(f"/{WHOLE_FILE}")))
            if name in served:
                raise InputError(f"two indexes would have the name {name!r}", "rename one of the folders")

            def find(path: str = path) -> Place:
                return find_place(path if "://" in path else os.path.realpath(path))

            click.echo(f"deploying {name} …", err=True)
            deployed = Deployed(
                name, find, replicas, partial, None, models[0] if models else None,
                drain=_DRAIN * limits.seconds,
            )  # fmt: skip
            stack.callback(deployed.close)  # in case the server fails before it would close it
            one = ServedShards(name, deployed.index, limits.writes_waiting, deployed.close)
            deployed.follow(one.take_over)
            served[name] = one
        yield served
