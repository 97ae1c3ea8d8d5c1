"""Joining a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coil.errors import InputError, RemoteProblem, require

LOCAL = "local"
VERSION = importlib.metadata.version("coil-ir")  # must be the same on all nodes
NAMESPACE = "coil"
_SECONDS = 5.0  # timeout for an address that does not answer; Ray itself would try for minutes
# Nobody reads the metrics and task events of a cluster that ends with the command, but every process of Ray
# collects and sends them.
_UNOBSERVED = {"enable_metrics_collection": False, "task_events_report_interval_ms": 0}
_REMEDY = "check the address (HOST:PORT of the head node, as `ray start --head` prints it), or use local"
_TOKEN_REMEDY = (
    "set RAY_AUTH_MODE=token and copy ~/.ray/auth_token from the head node, "
    "or start the cluster with RAY_AUTH_MODE=disabled"
)
_ANY_CALL = "/ray.rpc.NodeInfoGcsService/GetClusterId"  # one that every driver makes first


@contextmanager
def joined(address: str) -> Iterator[Any]:
    """Ray, connected to the cluster at an address while the block runs; "local" starts one here.

    If the process is already connected, that connection is used and left open.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {
        "address": address,
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if address == LOCAL:  # reachable from this machine only, and without a web page of its own
        options |= {
            "_node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "_system_config": _UNOBSERVED,
        }
    elif address != "auto":
        _check(address)
    try:
        ray.init(**options)
    except Exception as error:  # Ray raises plain ones, too
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise RemoteProblem(f"the Ray cluster at {address} cannot be joined: {reason}", _REMEDY) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def load_ray() -> Any:
    """The package, without its telemetry and without a copy of this environment for each worker."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # or its messages would appear among ours
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster on this machine
    ray = require("ray", "ray")
    logging.getLogger("ray").setLevel(logging.ERROR)
    return ray


def _check(address: str) -> None:
    """Whether a Ray cluster answers at an address; otherwise a RemoteProblem."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in address:
        raise InputError(f"{address!r:.200} is not the address of a Ray cluster", _REMEDY)
    try:
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS).close()
    except (OSError, OverflowError) as error:
        told = getattr(error, "strerror", None) or error
        raise RemoteProblem(f"no Ray cluster answers at {address}: {told}", _REMEDY) from error
    if not _answers(address):
        raise RemoteProblem(f"what answers at {address} is not a Ray cluster", _REMEDY)
    if _rejects_token(address):
        raise RemoteProblem(f"the Ray cluster at {address} requires its own token", _TOKEN_REMEDY)
    from ray._private.services import canonicalize_bootstrap_address

    used = canonicalize_bootstrap_address(address)  # Ray replaces a loopback address by the machine's own
    if used is not None and used != address and not _answers(used):
        raise RemoteProblem(
            f"the Ray cluster at {address} does not listen on {used}, where Ray would look for it",
            "set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0, which makes Ray use loopback addresses",
        )


def _rejects_token(address: str) -> bool:
    """Whether the cluster requires another token than Ray would send from here, if it sends one.

    Ray itself would try again for a long time.
    """
    grpc = require("grpc", "ray")
    if os.environ.get("RAY_USE_TLS") == "1":
        return False
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

    try:
        sent = AuthenticationTokenLoader.instance().get_token_for_http_header()
    except Exception:  # Ray raises one of its own if the token is missing
        return True
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(_ANY_CALL)(b"", timeout=_SECONDS, metadata=tuple(sent.items()))
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False


def _answers(address: str) -> bool:
    """Whether something there speaks gRPC, as Ray does."""
    grpc = require("grpc", "ray")
    if os.environ.get("RAY_USE_TLS") == "1":  # Ray has the certificates
        return True
    with grpc.insecure_channel(address) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_SECONDS)
        except grpc.FutureTimeoutError:
            return False
    return True
