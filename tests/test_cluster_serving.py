"""Serving on a Ray cluster: the answers of one index, whatever is killed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

pytest.importorskip("ray")

import coil
from coil.cluster import calls, following
from coil.cluster.calls import PATIENCE, Outcome, RayCalls, RayChanges
from coil.cluster.connecting import ClusterIndex
from coil.cluster.deploying import _describe, deployed, find_app, open_deployed, undeploy
from coil.cluster.following import Deployed
from coil.cluster.replicas import Served
from coil.errors import CoilError, InputError, MissingIndex, MissingShard, PartlyChanged
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.service.limits import ServiceOptions
from coil.service.served import ServedIndex
from coil.service.served_shards import ServedShards
from coil.shards.exchange import Refusal
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, running_opened
from tests.sharded import expect_same
from tests.test_cluster_building import ask_all
from tests.test_shards_service import ASKED, DOCS, without_costs
from tests.tiny import random_texts

if TYPE_CHECKING:
    from tests.ray_cluster import TestCluster

pytestmark = pytest.mark.xdist_group("ray")

KILLS = int(os.environ.get("COIL_CLUSTER_KILLS", "3"))


class Setup:
    """One index, and two shards of the same documents, which are served under the name `many`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.link = folder, folder / "many.shards"
        self.one = create(folder / "one.coil", encoder=HashEncoder())
        self.one.add(DOCS)
        self.make("first", DOCS)
        self.link.symlink_to(folder / "first.shards")
        self.deployed = Deployed("many", self.find, 2, encoder=HashEncoder, drain=1.0)
        self.served = ServedShards("many", self.deployed.index, 8, self.deployed.close)
        self.deployed.follow(self.served.take_over)

    def make(self, name: str, docs: list[dict[str, Any]]) -> None:
        place = find_place(self.folder / f"{name}.shards")
        create_shards(place, 2, encoder=HashEncoder())
        with open_sharded(place, HashEncoder()) as index:
            index.add(docs)

    def find(self) -> Any:
        return find_place(self.link.resolve())


@pytest.fixture(scope="module")
def setup(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(following, "LOOK_SECONDS", 0.2)
        made = Setup(tmp_path_factory.mktemp("serving"))
        yield made
        made.served.close()
        made.one.close()


def test_the_service_on_ray_answers_what_one_index_answers(setup: Setup) -> None:
    expect_same(setup.one, setup.deployed.index, ask_all())
    one = ServedIndex("one", setup.one, 8, lambda _: setup.one)
    many = ServedShards("many", setup.deployed.index, 8)
    one.close, many.close = (lambda: None), (lambda: None)  # type: ignore[method-assign]
    with running_opened({"one": one, "many": many}, ServiceOptions(token=TOKEN)) as server:
        for asked in ASKED:
            first, second = (server.client.get(f"/v1/indexes/{name}/{asked}") for name in ("one", "many"))
            assert first.status_code == second.status_code, asked
            assert without_costs(second.json()) == without_costs(first.json()), asked
        told = server.client.get("/v1/indexes/many/search?q=river").json()
        assert told["partial"] is False
        assert len(told["versions"]) == 2
        assert server.client.get("/ready").status_code == 200
        assert "<html" in server.client.get("/").text
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for name in ("one", "many"):
            body = '{"id": "new", "text": "river bank open water"}'
            added = httpx.post(f"{server.url}v1/indexes/{name}/documents", content=body, headers=headers)
            assert added.json() == {"added": 1, "empty": [], "documents": 61}
        expect_same(setup.one, setup.deployed.index, ask_all())
        for name in ("one", "many"):
            gone = httpx.delete(f"{server.url}v1/indexes/{name}/documents/new", headers=headers)
            assert gone.json()["deleted"] == 1
        after = server.client.get("/v1/indexes/many/search?q=river").json()
        assert sum(after["versions"]) == sum(told["versions"]) + 2
    expect_same(setup.one, setup.deployed.index, ask_all())


def test_connect(setup: Setup, cluster: TestCluster) -> None:
    with coil.connect(f"ray://{cluster.address}/many") as index:  # type: ignore[attr-defined]
        assert isinstance(index, ClusterIndex)
        assert len(index) == len(setup.one)
        assert index.search("river bank", 5) == setup.one.search("river bank", 5)
        assert index.search_many(["river", "bank"], 5) == setup.one.search_many(["river", "bank"], 5)
        assert index.explain("river bank", "d3") == setup.one.explain("river bank", "d3")
        assert index.suggest("rivr") == setup.one.suggest("rivr")
        assert index["d3"] == setup.one["d3"]
        with index.pinned() as reader:
            assert reader.versions == index.versions

        async def search() -> Any:  # in a thread with an event loop, such as that of a notebook
            return index.search("river bank", 5)

        assert asyncio.run(search()) == setup.one.search("river bank", 5)
        left_out: list[str] = []
        new = [{"id": "n1", "text": "river water"}, {"id": "n2", "text": ""}]
        assert index.add(new, left_out.extend) == 1
        assert left_out == ["n2"]
        assert "n1" in index
        missing: list[str] = []
        assert index.delete(["n1", "n3"], missing.extend) == 1
        assert missing == ["n3"]
        assert index.inspect().documents == len(setup.one)
        hits = index.search("river bank", 5)
    assert [hit.text for hit in hits] == [hit.text for hit in setup.one.search("river bank", 5)]
    with pytest.raises(InputError, match="is closed"):
        index.search("river bank", 5)
    with pytest.raises(MissingIndex, match="no index 'other' is served"):
        coil.connect(f"ray://{cluster.address}/other")
    with pytest.raises(InputError, match="names the index"):
        coil.connect(f"ray://{cluster.address}/many", "other")
    with pytest.raises(InputError, match="token"):
        coil.connect(f"ray://{cluster.address}/many", token="x")


def test_a_batch_is_one_call_to_the_ledger_and_one_to_each_shard(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = setup.deployed.index
    queries = ["river bank", "money", "open water", "river", "token", "bank"] * 3  # too many to bring texts
    index.search_many(queries)  # now the statistics are known
    called: list[str] = []
    changes = index._changes
    assert isinstance(changes, RayChanges)

    class Noting:
        """A handle whose calls are counted."""

        def __init__(self, handle: Any) -> None:
            self.call, self._handle = self, handle

        def remote(self, method: str, arguments: Any) -> Any:
            called.append(method)
            return self._handle.call.remote(method, arguments)

    monkeypatch.setattr(changes, "_handle", Noting(changes._handle))
    monkeypatch.setattr(changes._calls, "_handles", [Noting(one) for one in changes._calls._handles])
    found = index.search_many(queries)
    assert called == ["versions", "rank", "rank"]
    called.clear()
    texts = [[hit.text for hit in hits] for hits in found]
    assert called == ["look_up", "look_up"]
    assert texts == [[hit.text for hit in hits] for hits in setup.one.search_many(queries)]


class Load:
    """Threads that search and expect one of several answers; what else comes is counted."""

    def __init__(self, ask: Callable[[], Any], right: list[Any], threads: int = 2) -> None:
        self._ask, self._right = ask, right
        self.counts: Counter[str] = Counter()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                found = self._ask()
            except CoilError as error:
                self.counts[f"failed: {error.reason}"] += 1
                continue
            self.counts[str(self._right.index(found)) if found in self._right else "wrong"] += 1

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    @property
    def failed(self) -> int:
        return sum(count for what, count in self.counts.items() if what.startswith("failed"))


def hits(index: Any) -> list[tuple[str, float]]:
    return [(hit.doc_id, hit.score) for hit in index.search("river bank", 20)]


def hits_at_last(index: Any) -> list[tuple[str, float]]:
    until = time.monotonic() + 60
    while True:
        try:
            return hits(index)
        except MissingShard:
            assert time.monotonic() < until
            time.sleep(0.2)


def wait_until_whole(cluster: TestCluster, count: int) -> None:
    until = time.monotonic() + 60
    while len(cluster.workers("ServeReplica")) < count:
        assert time.monotonic() < until
        time.sleep(0.2)


def test_kills_under_load(setup: Setup, cluster: TestCluster, soaked: Callable[..., None]) -> None:
    rng, killed, index = random.Random(1), Counter[str](), setup.deployed.index
    replicas = 5  # two shards twice, and the ledger
    right = [hits(setup.one)]
    setup.one.add([{"id": "x", "text": "money"}])  # a document more changes all scores a little
    right.append(hits(setup.one))
    setup.one.delete(["x"])
    with Load(lambda: hits(index), right) as load:
        for number in range(KILLS):
            wait_until_whole(cluster, replicas)
            time.sleep(0.5)
            if number % 3 == 2:
                cluster.kill_node()
                killed["nodes"] += 1
            else:
                what = "ServeReplica" if number % 3 else "shard-"
                os.kill(rng.choice(cluster.workers(what)), signal.SIGKILL)
                killed["replicas"] += 1
            added = index.add([{"id": f"x{number}", "text": "money"}])
            assert added == 1
            assert f"x{number}" in index
            assert index.delete([f"x{number}"]) == 1
        wait_until_whole(cluster, replicas)  # back to full strength by itself
        time.sleep(1)
    assert load.counts["wrong"] == 0, load.counts
    assert load.counts["0"] > 10 * KILLS
    assert load.failed <= 2 * KILLS, load.counts  # at most those that were in flight
    answers = load.counts["0"] + load.counts["1"]
    soaked("kills while serving on Ray", **killed, right=answers, wrong=0, failed=load.failed)


def test_a_newer_index_takes_over_without_a_failed_request(setup: Setup, cluster: TestCluster) -> None:
    docs = [{"id": f"new{n}", "text": text} for n, text in enumerate(random_texts(40, longest=30, seed=9))]
    setup.make("second", docs)
    with open_sharded(find_place(setup.folder / "second.shards"), HashEncoder()) as index:
        expected = hits(index)
    before = find_app("many")

    def ask() -> Any:
        with setup.served.reading() as reader:
            return hits(reader)

    with coil.connect(f"ray://{cluster.address}/many") as connected:  # type: ignore[attr-defined]
        with Load(ask, [hits(setup.one), expected]) as load:
            time.sleep(1)
            link = setup.folder / "link"
            link.symlink_to(setup.folder / "second.shards")
            link.replace(setup.link)
            until = time.monotonic() + 60
            while not load.counts["1"] or before in deployed("many"):
                assert time.monotonic() < until, load.counts
                time.sleep(0.2)
            time.sleep(0.5)
        assert load.counts.keys() <= {"0", "1"}, load.counts
        assert hits(connected) == expected  # it finds the newer one when the older is gone
    assert find_app("many") != before


def test_a_shard_that_is_gone(setup: Setup, cluster: TestCluster) -> None:
    app = find_app("many")
    strict, partial = setup.deployed.index, open_deployed(app, partial=True)
    whole = hits_at_last(strict)  # replicas that were killed before may still be starting
    place = setup.find()
    shard, aside = place.folder("00001.coil"), setup.folder / "aside"
    shard.rename(aside)
    for pid in cluster.workers("shard-1"):
        os.kill(pid, signal.SIGKILL)
    try:
        with pytest.raises(MissingShard, match="shard 1 of 2 cannot be reached"):
            strict.search("river bank")
        served = ServedShards("many", partial, 8)
        served.close = lambda: None  # type: ignore[method-assign]
        with running_opened({"many": served}, ServiceOptions()) as server:
            told = server.client.get("/v1/indexes/many/search?q=river+bank&k=20").json()
            assert told["partial"] is True
            assert told["missing"] == [{"shard": 1, "of": 2, "documents": 0}]
            assert told["versions"][1] is None
        in_first = {doc_id for doc_id, _ in whole if partial.manifest.routing.shard_of(doc_id) == 0}
        assert {hit["doc_id"] for hit in told["hits"]} >= in_first
        with pytest.raises(
            PartlyChanged, match=r"made in 1 of the 2 shards .* shard 1 of 2 cannot be reached"
        ):
            strict.add([{"id": f"y{n}", "text": "river"} for n in range(9)])
    finally:
        aside.rename(shard)
    assert hits_at_last(strict)[: len(whole)]
    for _ in range(30):  # whichever replica is asked, even one that has not opened its shard again
        assert len(strict) >= len(whole)
    assert len(partial) == len(strict)


class Replying:
    """A deployment whose replicas answer in turn."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes, self.asked = outcomes, 0
        self.call = self

    def remote(self, *_: Any) -> Any:
        self.asked += 1
        return self

    def result(self, timeout_s: float) -> Outcome:
        return self.outcomes[(self.asked - 1) % len(self.outcomes)]


def test_a_replica_without_its_shard_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Outcome(refusal=Refusal.of(MissingShard("shard 0 of 1 cannot be opened", "restore it", [0])))
    deployment = Replying(gone, gone, Outcome(7))
    monkeypatch.setattr(calls, "handle_of", lambda *_: deployment)
    ray_calls = RayCalls("app", 1)
    for _ in range(3):
        assert ray_calls.ask([0], "count_documents", lambda _: ()) == {0: 7}
    deployment.outcomes = (gone,)
    monkeypatch.setattr(calls, "REFUSED_PATIENCE", 0.2)
    began = time.monotonic()
    with pytest.raises(MissingShard, match="shard 0 of 1 cannot be reached"):
        ray_calls.ask([0], "count_documents", lambda _: ())
    assert time.monotonic() - began < PATIENCE / 2  # all replicas refuse: there is nothing to wait for


def test_indexes_are_deployed_from_several_threads_at_once(tmp_path: Path) -> None:
    """Ray Serve alone fails here: what one thread registers, another takes away."""
    place = find_place(tmp_path / "few.shards")
    served = Served("few", place, create_shards(place, 2, encoder=HashEncoder()))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            described = list(pool.map(lambda _: _describe("app", served, 1), range(40)))
    finally:
        sys.setswitchinterval(before)
    assert {target.name for target in described} == {"app"}


def test_an_empty_shard_and_one_that_does_not_open(cluster: TestCluster, tmp_path: Path) -> None:
    place = find_place(tmp_path / "few.shards")
    manifest = create_shards(place, 2, encoder=HashEncoder())
    ids = [doc_id for doc_id in (f"d{n}" for n in range(20)) if manifest.routing.shard_of(doc_id) == 1][:5]
    one: Index = create(tmp_path / "one.coil", encoder=HashEncoder())
    served = Deployed("few", lambda: place, 1, encoder=HashEncoder)
    try:
        for index in (one, served.index):
            index.add([{"id": doc_id, "text": f"river bank {doc_id}"} for doc_id in ids])
        expect_same(one, served.index, ask_all())
    finally:
        served.close()
        one.close()
    while deployed("few"):
        time.sleep(0.1)
    place.folder("00001.coil").rename(tmp_path / "gone.coil")
    with pytest.raises(MissingShard, match="shard 1 of 2"):
        Deployed("few", lambda: place, 1, encoder=HashEncoder)
    for app in deployed("few"):
        undeploy(app)
