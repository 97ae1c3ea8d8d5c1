"""A Ray cluster of several nodes on this machine, for tests; nothing of it can be reached from elsewhere."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from coil.cluster.joining import NAMESPACE, load_ray

os.environ.setdefault("RAY_raylet_start_wait_time_s", "240")  # a busy machine takes longer than usual

NODE = {
    "num_cpus": 2, "object_store_memory": 200 << 20, "node_ip_address": "127.0.0.1",
    "include_dashboard": False, "dashboard_host": "127.0.0.1",
}  # fmt: skip

QUICK = {  # a dead node is noticed within two seconds
    "health_check_initial_delay_ms": 1000, "health_check_period_ms": 500, "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 3,
}  # fmt: skip


class TestCluster:
    """Two nodes at first; this process has joined the first."""

    __test__ = False

    def __init__(self) -> None:
        self.ray = load_ray()
        from ray.cluster_utils import Cluster

        head = {**NODE, "_system_config": QUICK}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._others = [self._cluster.add_node(**NODE)]
        self.address: str = self._cluster.address
        self.ray.init(address=self.address, namespace=NAMESPACE, log_to_driver=False, logging_level="error")

    def kill_node(self) -> None:
        """kill -9 of a node's processes, other than the first's; another one joins."""
        node = self._others.pop()
        for kind in node.all_processes.values():
            for found in kind:
                os.kill(found.process.pid, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)
        self._others.append(self._cluster.add_node(**NODE))

    def workers(self, what: str) -> list[int]:
        """The processes of this cluster that have this in their title, where Ray puts the actor's class."""
        nodes = {
            found.process.pid
            for node in (self._cluster.head_node, *self._others)
            for found in node.all_processes.get("raylet", [])
        }
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if _parent(pid) in nodes and what in _title(pid)]

    def stop(self) -> None:
        self.ray.shutdown()
        self._cluster.shutdown()


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _title(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
