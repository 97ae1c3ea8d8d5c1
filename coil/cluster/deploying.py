"""Deploying a sharded index as an application of Ray Serve, and finding those that are deployed.

An application serves one index, by the id of its whole. A newer index of the same name is another
application: it is started beside the older one, takes over, and then the older one is deleted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coil.cluster.calls import (
    LEDGER,
    PATIENCE,
    RayCalls,
    RayChanges,
    applications,
    away_from_loops,
    serving,
    shard_name,
)
from coil.cluster.replicas import LedgerReplica, Served, ShardReplica
from coil.errors import CoilError, InputError, MissingIndex, MissingShard, OptionMismatch, RemoteProblem
from coil.indexes.model import load_encoder
from coil.shards.index import ShardedIndex
from coil.shards.opening import check_finished
from coil.shards.places import Place, read_whole
from coil.vectors.encoder import Encoder

PARTIAL_PATIENCE = 2.0  # seconds, if an answer may omit a shard
_PREFIX = "coil"
_START_SECONDS = 300.0
_ANSWERING = ("RUNNING", "UNHEALTHY")  # an unhealthy one has lost replicas, which Serve replaces
_LOGS = {"log_level": "WARNING", "enable_access_log": False}  # for replicas: no line per call
_LOOK_SECONDS = 0.2
_ONGOING = 64  # calls that a replica takes at a time, running or waiting for a thread


@dataclass(frozen=True)
class AppName:
    """The name of an application: name of the index, time of deployment, and id of the whole."""

    index: str
    when: int  # milliseconds since 1970
    whole: str

    def __str__(self) -> str:
        return f"{_PREFIX}:{self.index}:{self.when}:{self.whole}"

    @classmethod
    def parse(cls, text: str) -> AppName | None:
        """Parse a name; None if it is not one of ours."""
        prefix, _, rest = text.partition(":")
        parts = rest.rsplit(":", 2)
        if prefix != _PREFIX or len(parts) != 3 or not parts[1].isdigit():
            return None
        return cls(parts[0], int(parts[1]), parts[2])


def deployed(index: str | None = None) -> list[AppName]:
    """The applications that have started to answer, of one index or of all, newest first."""

    found = []
    for text, status in applications().items():
        name = AppName.parse(text)
        if name is not None and index in (None, name.index) and status.status in _ANSWERING:
            found.append(name)
    return sorted(found, key=lambda name: -name.when)


def deploy(
    name: str,
    place: Place,
    replicas: int,
    encoder: Callable[[], Encoder] | None = None,
    threads: int = 1,
) -> tuple[AppName, bool]:
    """Serve the index at a place with this many copies of each shard; returns whether this is new.

    If an application already serves this index, its number of copies is changed.
    """
    from ray import serve

    manifest = read_whole(place)
    check_finished(manifest, place.where)
    served = Served(name, place, manifest, encoder, threads)
    there = next((app for app in deployed(name) if app.whole == manifest.whole), None)
    app = there or AppName(name, time.time_ns() // 1_000_000, manifest.whole)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    serve.start(http_options={"location": "NoServer"}, logging_config=_LOGS)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # starting it has changed the level
    target = _describe(str(app), served, replicas)
    try:
        with serving:
            serve.run_many([target], wait_for_applications_running=False)
        _wait_until_running(str(app))
    except CoilError:
        if there is None:
            serve.delete(str(app))
        raise
    return app, there is None


def _describe(app: str, served: Served, replicas: int) -> Any:
    """The application for Ray Serve: the shards and the ledger, with this many copies of each shard."""
    from ray import serve

    how: dict[str, Any] = {
        "max_ongoing_requests": _ONGOING,
        "health_check_period_s": 2,
        "health_check_timeout_s": 20,
        "graceful_shutdown_timeout_s": 5,
        "graceful_shutdown_wait_loop_s": 0.1,
        "ray_actor_options": {"num_cpus": 0},
    }
    with serving:
        shard = serve.deployment(num_replicas=replicas, **how)(ShardReplica)
        shards = [
            shard.options(name=shard_name(number)).bind(served, number)
            for number in range(len(served.manifest.shards))
        ]
        ledger = serve.deployment(name=LEDGER, num_replicas=1, **how)(_Ledger)
        root = ledger.bind(served, app, *shards)
        return serve.RunTarget(root, name=app, route_prefix=None, logging_config=_LOGS)


class _Ledger(LedgerReplica):
    """As Serve starts it: the shards are named so that they belong to the same application."""

    def __init__(self, served: Served, app: str, *_: Any) -> None:
        super().__init__(served, app)


def _wait_until_running(app: str) -> None:

    until = time.monotonic() + _START_SECONDS
    while True:
        found = applications().get(app)
        if found is not None and found.status == "RUNNING":
            return
        if found is not None and found.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            reason = found.message.strip().splitlines()[-1:] or ["no reason given"]
            raise RemoteProblem(f"the index cannot be deployed: {reason[0]}", "see the logs of Ray Serve")
        if time.monotonic() > until:
            raise RemoteProblem(
                f"the index was not deployed within {_START_SECONDS:.0f} s",
                "check that the nodes have memory and cores left",
            )
        time.sleep(_LOOK_SECONDS)


def is_deployed(app: AppName) -> bool:
    """Whether an application exists and is not being deleted, healthy or not."""

    found = applications().get(str(app))
    return found is not None and found.status != "DELETING"


def undeploy(app: AppName) -> None:
    """Stop serving an index."""
    from ray import serve

    serve.delete(str(app), _blocking=False)


def find_app(index: str | None) -> AppName:
    """The newest application of an index; None means the only one that is served."""
    apps = deployed(index)
    names = sorted({app.index for app in apps})
    if not apps:
        what = f"no index {index!r:.100}" if index is not None else "no index"
        every = sorted({app.index for app in deployed()})
        remedy = f"choose one of {', '.join(every)}" if every else "serve one with `coil serve INDEX --ray …`"
        raise MissingIndex(f"{what} is served on this cluster", remedy)
    if len(names) > 1:
        raise InputError("several indexes are served on this cluster", f"choose one of {', '.join(names)}")
    return apps[0]


def open_deployed(
    app: AppName,
    partial: bool = False,
    model: str | None = None,
    close: Callable[[], object] | None = None,
) -> ShardedIndex:
    """A deployed index, ready to be searched and changed; queries are encoded here."""
    from ray import serve

    try:
        about = serve.get_deployment_handle(LEDGER, app_name=str(app)).about
        served: Served = away_from_loops(lambda: about.remote().result(timeout_s=PATIENCE))
    except TimeoutError as error:
        raise MissingShard(f"the ledger of {app.index!r} does not answer", "try again later") from error
    settings = served.manifest.settings
    if served.encoder is not None:
        encoder = served.encoder()
    else:
        encoder = load_encoder(model if model is not None else settings["model"], settings["fingerprint"])
    if encoder.fingerprint != settings["fingerprint"]:
        raise OptionMismatch(
            f"{app.index} was built with the model {settings['fingerprint']}, but the model found here is "
            f"{encoder.fingerprint}",
            "use its own model (--model FOLDER)",
        )
    calls = RayCalls(str(app), len(served.manifest.shards), PARTIAL_PATIENCE if partial else PATIENCE)
    return ShardedIndex(served.manifest, calls, RayChanges(str(app), calls), encoder, partial, close)
