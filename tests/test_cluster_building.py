"""Builds on a Ray cluster: whatever is killed, every document once, and the answers of one index."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("ray")

from coil.cli.main import run
from coil.cluster.build_state import BuildState
from coil.cluster.building import BuildReport, ClusterBuild, Workers, start_build
from coil.cluster.encoding import EncodedWindow, EncoderRecipe, WindowActor, encoder_on
from coil.cluster.reading import Unread
from coil.cluster.writing import ShardWriter, Started, Taken
from coil.errors import (
    ChangedCorpus,
    DamagedManifest,
    IndexLocked,
    MixedShards,
    OptionMismatch,
    OutputError,
    UnfinishedBuild,
)
from coil.indexes.opening import create, open_index
from coil.shards.exchange import Refusal
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place, read_whole, write_whole
from coil.shards.windows import CorpusFiles, Reached, cut_windows
from coil.texts.corpora import read_documents
from tests.faults import Plan, faulty_folder
from tests.hash_encoder import HashEncoder
from tests.sharded import BY, expect_same
from tests.tiny import random_texts

if TYPE_CHECKING:
    from tests.ray_cluster import TestCluster

pytestmark = pytest.mark.xdist_group("ray")

ROOT = Path(__file__).resolve().parent.parent
KILLS = int(os.environ.get("COIL_CLUSTER_KILLS", "3"))


class SlowEncoder(HashEncoder):
    """Takes its time, so that there is a middle to be killed in."""

    def encode_documents(self, texts: Any) -> Any:
        for vectors in super().encode_documents(texts):
            time.sleep(0.01)
            yield vectors


def write(path: Path, count: int) -> Path:
    texts = random_texts(count, longest=40, seed=2)
    docs = [{"id": f"d{n}", "text": "" if n % 50 == 7 else text} for n, text in enumerate(texts)]
    docs += [{"id": "d3", "text": "river bank once more"}, {"id": "z1", "text": "river bank"}]
    path.write_text("".join(json.dumps(document) + "\n" for document in docs))
    return path


def build(
    cluster: TestCluster, where: Path, count: int, corpus: Path, encoder: Any = HashEncoder, **how: Any
) -> list[str]:
    """Build an index of so many shards; returns what was said."""
    place, told = find_place(where), list[str]()
    files = CorpusFiles((str(corpus),))
    with place.claim():
        manifest, state = start_build(place, count, on_duplicate="update", encoder=encoder(), **how)
        report = BuildReport(lambda *_: None, told.append, [])
        workers = Workers(2, 2, window=8)
        ClusterBuild(cluster.ray, place, manifest, state, files, workers, report, encoder).run()
    return told


def ask_all() -> list[dict[str, Any]]:
    rest = {"filter": None, "sort": None, "offset": 0, "fold_duplicates": False, "min_score": None,
            "min_share": None, "plain": False}  # fmt: skip
    return [{"query": query, "k": 10, "by": by, **rest} for query in ("river bank", "+water") for by in BY]


def expect_complete(where: Path, corpus: Path, folder: Path) -> None:
    """The shards have every document once, and answer as one index does."""
    with (
        create(folder / f"one-{time.monotonic_ns()}.coil", encoder=HashEncoder()) as one,
        open_sharded(find_place(where), HashEncoder()) as many,
    ):
        one.update(read_documents(corpus), left_out=lambda _: None)
        assert len(many) == len(one)
        expect_same(one, many, ask_all())
    for number in range(len(read_whole(find_place(where)).shards)):
        with open_index(find_place(where).folder(f"{number:05}.coil"), HashEncoder()) as shard:
            shard.verify()


def test_a_build_survives_kills_of_workers_writers_and_nodes(
    cluster: TestCluster, tmp_path: Path, soaked: Callable[..., None]
) -> None:
    corpus = write(tmp_path / "c.jsonl", 300 + 400 * KILLS)
    killed, rng = {"MapWorker": 0, "ShardWriter": 0, "node": 0}, random.Random(KILLS)
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(build, cluster, tmp_path / "many.shards", 3, corpus, SlowEncoder)
        wait([built], timeout=5)
        for what in ([*killed] * KILLS)[:KILLS]:
            wait([built], timeout=2 + 2 * rng.random())
            if built.done():
                break
            if what == "node":
                cluster.kill_node()
            else:
                while not (found := cluster.workers(what)):
                    time.sleep(0.1)
                os.kill(rng.choice(found), signal.SIGKILL)
            killed[what] += 1
        told = built.result()
    expect_complete(tmp_path / "many.shards", corpus, tmp_path)
    assert sum(killed.values()) >= KILLS, (killed, told)
    soaked("kills during a build on Ray", **{name.lower(): count for name, count in killed.items()})


def start_command(cluster: TestCluster, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "coil.cli.main", "index", *map(str, arguments), "--ray", cluster.address]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ})


def test_a_driver_that_is_killed_resumes(
    cluster: TestCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = random_texts(1200, longest=30, seed=4)
    corpus, out = tmp_path / "c.jsonl", tmp_path / "many.shards"
    docs = [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)]
    corpus.write_text("".join(json.dumps(document) + "\n" for document in docs))
    first = start_command(cluster, corpus, "--out", out, "--shards", 2, "--actors", 1)
    place, until = find_place(out), time.monotonic() + 90
    while True:  # until something is committed, and not all
        if out.exists() and "shards.json" in place.names():
            build = read_whole(place).build
            if build is not None and build["documents"] > 0:
                break
        assert first.poll() is None, first.stderr.read() if first.stderr else ""
        assert time.monotonic() < until
        time.sleep(0.02)
    first.send_signal(signal.SIGSTOP)  # or it might finish meanwhile
    resume = ["index", str(corpus), "--out", str(out), "--ray", cluster.address, "--resume"]
    assert run(resume) == 1
    assert "is being built by another process" in capsys.readouterr().err
    first.kill()
    first.wait()
    assert first.stderr is not None
    first.stderr.close()
    before = read_whole(place).build
    assert before is not None
    assert before["documents"] < 1200
    assert run(resume[:-1]) == 1
    assert "continue it with --resume" in capsys.readouterr().err
    assert run(resume) == 0
    assert f"resuming after {before['documents']:,} documents" in capsys.readouterr().err
    with open_sharded(place) as many, create(tmp_path / "one.coil") as one:
        one.add(read_documents(corpus))
        assert len(many) == 1200
        for by in BY:
            found, expected = ([(hit.doc_id, hit.score) for hit in index.search("river bank", 50, by=by)]
                               for index in (many, one))  # fmt: skip
            assert found == expected
    assert run(resume) == 1
    assert "is finished" in capsys.readouterr().err


def test_a_shard_that_cannot_be_written_and_a_changed_corpus(cluster: TestCluster, tmp_path: Path) -> None:
    corpus, where = write(tmp_path / "c.jsonl", 60), tmp_path / "many.shards"
    place = find_place(where)
    with place.claim():
        start_build(place, 2, on_duplicate="update", encoder=HashEncoder())
        with pytest.raises(IndexLocked, match="being built"), place.claim():
            pass
    segments = place.folder("00001.coil") / "segments"
    if segments.exists():
        segments.rmdir()
    segments.write_text("in the way")
    with pytest.raises(OutputError, match="shard 1 of 2"):
        build(cluster, where, 2, corpus, resume=True)
    segments.unlink()
    manifest, read = (
        read_whole(place),
        next(cut_windows(CorpusFiles((str(corpus),)), [0, 0], most=20)).reached,
    )
    assert manifest.build is not None
    state = replace(BuildState.from_json(manifest.build, place.where), reached=read)
    write_whole(place, replace(manifest, build=state.to_json()))
    content = corpus.read_text()
    corpus.write_text(content.replace("d11", "x11"))
    with pytest.raises(ChangedCorpus, match="changed since the interrupted run"):
        build(cluster, where, 2, corpus, resume=True)
    corpus.write_text(content)
    with pytest.raises(UnfinishedBuild, match="--resume"):
        build(cluster, where, 2, corpus)
    for wrong in ({"precision": "fp16"}, {"long": "truncate"}):
        with pytest.raises(OptionMismatch, match="was started with"):
            build(cluster, where, 2, corpus, resume=True, **wrong)
    build(cluster, where, 2, corpus, resume=True)
    expect_complete(where, corpus, tmp_path)
    with pytest.raises(OutputError, match="is finished"):
        build(cluster, where, 2, corpus)


def test_wrong_addresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = write(tmp_path / "c.jsonl", 3)
    command = [sys.executable, "-m", "coil.cli.main", "index", str(corpus), "--out", str(tmp_path / "x")]
    for address, expected in (
        ("127.0.0.1:1", "no Ray cluster answers"),
        ("nowhere", "is not the address of a Ray cluster"),
        ("http://127.0.0.1:80/", "is not the address of a Ray cluster"),
    ):
        done = subprocess.run(
            [*command, "--ray", address], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stderr
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "x").exists()
    assert run(["index", str(corpus), "--out", str(tmp_path / "x"), "--shards", "2"]) == 2
    assert "require --ray" in capsys.readouterr().err
    for wrong in ("0", "3:2", "x"):
        assert run(["index", str(corpus), "--out", "x", "--ray", "local", "--actors", wrong]) == 2


def test_a_cluster_with_a_token(tmp_path: Path) -> None:
    head = (
        "import sys; from tests.ray_cluster import NODE; from ray.cluster_utils import Cluster\n"
        "cluster = Cluster(initialize_head=True, head_node_args={**NODE, 'num_cpus': 1})\n"
        "print(cluster.address, flush=True); sys.stdin.read(); cluster.shutdown()"
    )
    join = (
        "import sys; from coil.cluster.joining import joined\n"
        "with joined(sys.argv[1]) as ray: print(len(ray.nodes()))"
    )
    token, home = "0123456789abcdef" * 2, {**os.environ, "HOME": str(tmp_path)}
    right = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    with subprocess.Popen(
        [sys.executable, "-c", head], cwd=ROOT, env={**home, **right}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        for sent in ({}, {"RAY_AUTH_MODE": "token"}, {**right, "RAY_AUTH_TOKEN": "f" * 32}, right):
            done = subprocess.run(
                [sys.executable, "-c", join, address], cwd=ROOT, env={**home, **sent}, capture_output=True,
                text=True, check=False,
            )  # fmt: skip
            if sent is right:
                assert done.stdout.strip() == "1", done.stderr
            else:
                assert "RemoteProblem" in done.stderr
                assert "requires its own token" in done.stderr


# ---- parts, without a cluster


def test_a_node_with_another_version_or_model_says_so(tmp_path: Path) -> None:
    place = find_place(tmp_path / "many")
    manifest = create_shards(place, 2, encoder=HashEncoder())
    recipe = EncoderRecipe(manifest, HashEncoder)
    for wrong, expected in (
        (replace(recipe, version="0.0.1"), "version"),
        (replace(recipe, given=OtherEncoder), "the model of this node"),
    ):
        with pytest.raises(MixedShards, match=expected):
            wrong.make()
        actor = WindowActor(wrong)
        corpus = CorpusFiles((str(write(tmp_path / "c.jsonl", 5)),))
        [table] = Unread(corpus, [0, 0], Reached()).tables()
        [window] = EncodedWindow.rows_of(actor(table), 0)
        assert window.refusal is not None
        assert isinstance(window.refusal.error(), MixedShards)
        assert not window.parts


def test_an_actor_has_one_core(tmp_path: Path) -> None:
    place = find_place(tmp_path / "many")
    (tmp_path / "manifest").write_bytes(create_shards(place, 2, encoder=HashEncoder()).to_bytes())
    code = f"""
import os
from pathlib import Path
from coil.cluster.encoding import EncoderRecipe, OneCoreActor
from coil.shards.whole import WholeManifest
from tests.hash_encoder import HashEncoder
manifest = WholeManifest.from_bytes(Path({str(tmp_path / "manifest")!r}).read_bytes(), "x")
OneCoreActor(EncoderRecipe(manifest, HashEncoder))
before = len(os.listdir("/proc/self/task"))
HashEncoder().tokenizer.cut(["river bank"] * 1000, 100)
print(len(os.listdir("/proc/self/task")) - before)
"""
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, timeout=120, check=True
    )
    assert int(told.stdout) <= 1  # of all cores, it would be one for each


class OtherEncoder(HashEncoder):
    """Another model."""

    def __init__(self) -> None:
        super().__init__(n_t=8)


def test_a_writer_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = find_place(tmp_path / "many")
    manifest = create_shards(place, 1, encoder=HashEncoder())
    corpus = CorpusFiles((str(write(tmp_path / "c.jsonl", 30)),))
    actor = WindowActor(EncoderRecipe(manifest, HashEncoder))
    blocks = [actor(table) for table in Unread(corpus, [0], Reached(), 8).tables()]
    writer = ShardWriter(place, manifest, 0, "update")
    with monkeypatch.context() as patch:
        patch.setattr("coil.storage.lock.Folder", faulty_folder(Plan(3)))
        started = writer.start()
        assert isinstance(started, Started)
        for block in blocks:
            writer.take(started.life, block)
        refused = writer.commit(started.life)
        assert isinstance(refused, Refusal)
        assert "No space left" in refused.error().reason
    again = writer.start()
    assert isinstance(again, Started)
    assert writer.take(started.life, blocks[0]) is None  # of a life that is over
    assert writer.commit(started.life) is False
    for block in blocks:
        writer.take(again.life, block)
    assert writer.commit(again.life) is True
    entry = writer.finish(again.life)
    assert not isinstance(entry, Refusal | bool)
    assert entry.documents == 30


def test_two_builds_in_object_storage(tmp_path: Path) -> None:
    place = find_place("memory://two-builds/many", tmp_path)
    manifest, state = start_build(place, 2, encoder=HashEncoder())
    write_whole(place, replace(manifest, build=state.beating("somebody").to_json()))
    with pytest.raises(IndexLocked, match="last active"):
        start_build(place, 2, encoder=HashEncoder(), resume=True)
    write_whole(place, replace(manifest, build=state.let_go().to_json()))
    _, again = start_build(place, 2, encoder=HashEncoder(), resume=True)
    assert again == state
    with pytest.raises(DamagedManifest, match="build state"):
        BuildState.from_json({"on_duplicate": "maybe"}, "x")


def test_an_index_that_was_encoded_with_pytorch(full: Path, tmp_path: Path) -> None:
    """What actors with GPUs do, here on the CPU: the index opens with the same model afterwards."""
    place = find_place(tmp_path / "many")
    manifest = create_shards(place, 2, str(full), encoder=encoder_on("cpu", str(full)))
    actor = WindowActor(EncoderRecipe(manifest, device="cpu"))
    corpus = CorpusFiles((str(write(tmp_path / "c.jsonl", 20)),))
    blocks = [actor(table) for table in Unread(corpus, [0, 0], Reached()).tables()]
    for number in range(2):
        writer = ShardWriter(place, manifest, number, "update")
        started = writer.start()
        assert isinstance(started, Started)
        for block in blocks:
            taken = writer.take(started.life, block)
            assert isinstance(taken, Taken)
            assert taken.refusal is None
        writer.finish(started.life)
    with open_sharded(place) as many:
        assert type(many.encoder).__name__ == "TorchEncoder"
        assert many.search("river bank")[0].score > 0
