"""An index on disk: damage, locks, snapshots, full and read-only disks, and formats of old."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coil.errors import (
    DamagedManifest,
    DamagedSegment,
    IndexLocked,
    IndexProblem,
    MissingIndex,
    MissingSegment,
    NewerIndex,
    OlderIndex,
    OptionMismatch,
    OutputError,
)
from coil.indexes.opening import create, open_index
from coil.permissions import Permissions
from coil.storage.lock import writer_lock
from tests.hash_encoder import HashEncoder, answers
from tests.tiny import random_texts

# ---- damage


@pytest.fixture
def small(tmp_path: Path) -> Path:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    index.add({"id": i, "text": text} for i, text in enumerate(random_texts(20)))
    index.close()
    return tmp_path / "a.coil"


def only_file(folder: Path, kind: str) -> Path:
    [path] = (folder / "segments").glob(f"*.{kind}")
    return path


@pytest.mark.parametrize("kind", ["lists", "documents"])
def test_every_flipped_byte_is_found(small: Path, kind: str) -> None:
    path = only_file(small, kind)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    places = [0, 7, 8, len(content) - 1, *rng.integers(0, len(content), 60).tolist()]
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(flipped)
        with pytest.raises(DamagedSegment, match=path.name):
            open_index(small, encoder=HashEncoder()).verify()
    path.write_bytes(content)
    open_index(small, encoder=HashEncoder()).verify()


@pytest.mark.parametrize("kind", ["lists", "documents"])
def test_other_damage_has_a_name_each(small: Path, kind: str) -> None:
    path = only_file(small, kind)
    content = path.read_bytes()
    for cut in (0, 4, 100, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(DamagedSegment):
            open_index(small, encoder=HashEncoder())
    path.unlink()
    with pytest.raises(MissingSegment, match=path.name):
        open_index(small, encoder=HashEncoder())
    path.write_bytes(content)
    open_index(small, encoder=HashEncoder()).close()


def test_a_manifest_that_is_not_one_is_named(small: Path) -> None:
    path = small / "manifest.jsonl"
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in [0, 10, len(content) - 3, *rng.integers(0, len(content) - 1, 60).tolist()]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(0, 7))
        path.write_bytes(flipped)
        with pytest.raises((DamagedManifest, NewerIndex, OlderIndex), match=r"manifest\.jsonl"):
            open_index(small)
    for other in (b"", b"\n", b"[" * 100_000, b"{}\n{}", b'{"coil": 4}\n', content[:-40]):
        path.write_bytes(other)
        with pytest.raises(DamagedManifest, match=r"manifest\.jsonl"):
            open_index(small)
    path.write_bytes(content.replace(b'"coil": 4', b'"coil": 99'))
    with pytest.raises(NewerIndex, match="format 99"):
        open_index(small)
    path.unlink()
    with pytest.raises(MissingIndex, match="is not an index"):
        open_index(small)
    (small / "catalog.sqlite").write_bytes(b"of format 1, 2 or 3")
    with pytest.raises(OlderIndex) as caught:
        open_index(small)
    assert caught.value.remedy == "rebuild it with `coil index`"
    with pytest.raises(MissingIndex):
        open_index(small / "nothing")


def forge(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A manifest that says something else, with a digest that fits."""
    path = folder / "manifest.jsonl"
    value = json.loads(path.read_bytes().split(b"\n")[1])
    change(value)
    body = json.dumps(value).encode()
    first = json.dumps({"coil": 4, "sha256": hashlib.sha256(body).hexdigest()}).encode()
    path.write_bytes(first + b"\n" + body + b"\n")


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no settings": lambda m: m.update(settings={}),
    "settings of other types": lambda m: m["settings"].update(config=[1]),
    "a build that is none": lambda m: m.update(build={"documents": "many"}),
    "a segment twice": lambda m: m["segments"].append(m["segments"][0]),
    "a segment elsewhere": lambda m: m["segments"][0].update(name="../../etc/passwd"),
    "negative rows": lambda m: m["segments"][0].update(rows=-1),
    "endless rows": lambda m: m["segments"][0].update(rows=10**30),
    "no rows": lambda m: m["segments"][0].update(rows=0, documents=0, living=0),
    "more mentions": lambda m: m["segments"][0].update(mentions=10**9),
    "ordinals beyond the next": lambda m: m.update(next_ordinal=2),
    "a bitmap that unpacks to gigabytes": lambda m: m["segments"][0].update(
        deleted=base64.b64encode(zlib.compress(bytes(1 << 26))).decode()
    ),
    "a bitmap that is none": lambda m: m["segments"][0].update(deleted="?"),
    "no segments": lambda m: m.pop("segments"),
    "segments that are none": lambda m: m.update(segments=[7]),
    "more living documents than there are": lambda m: m["segments"][0].update(living=21),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_manifest_is_refused(small: Path, what: str) -> None:
    forge(small, HOSTILE[what])
    with pytest.raises(IndexProblem), open_index(small, encoder=HashEncoder()) as index:
        index.verify()


def test_another_model_is_refused(small: Path) -> None:
    with pytest.raises(OptionMismatch, match="hash-4-3"):
        open_index(small, encoder=HashEncoder(n_t=8)).search("river")


# ---- writers and readers


def test_a_second_writer_gets_a_clear_error_and_readers_go_on(small: Path) -> None:
    index = open_index(small, encoder=HashEncoder())
    hold = (
        "import sys; from pathlib import Path; from coil.storage.lock import writer_lock\n"
        "with writer_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(small)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(IndexLocked, match=f"process {holder.pid}"):
        index.add([{"id": "new", "text": "river"}])
    assert index.search("river")
    holder.kill()  # the lock dies with its holder
    holder.communicate()
    assert index.add([{"id": "new", "text": "river"}]) == 1


def test_a_snapshot_does_not_move(small: Path) -> None:
    reader, writer = (open_index(small, encoder=HashEncoder()) for _ in range(2))
    before = answers(reader)
    writer.delete([str(i) for i in range(0, 20, 2)])
    writer.update([{"id": "1", "text": "river bank money"}])
    writer.compact()
    assert answers(reader) == before
    assert reader.document("0").doc_id == "0"
    reader.refresh()
    assert answers(reader) == answers(writer) != before


def test_strays_of_a_killed_writer_are_removed(small: Path) -> None:
    strays = [small / "segments" / "0000000099-0123456789abcdef.lists", small / "manifest-01234567-9.partial"]
    for stray in strays:
        stray.write_bytes(b"half a file")
    index = open_index(small, encoder=HashEncoder())
    index.add([{"id": "new", "text": "river"}])
    assert not any(stray.exists() for stray in strays)
    assert len(list((small / "segments").iterdir())) == 2 * index.inspect().segments


def test_a_full_disk_leaves_the_old_state(small: Path) -> None:
    code = (
        "import resource, sys, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from tests.hash_encoder import HashEncoder; from coil.indexes.opening import open_index\n"
        "from coil.errors import OutputError\n"
        "index = open_index(sys.argv[1], encoder=HashEncoder())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "try: index.add({'id': f'n{i}', 'text': 'river bank ' * 20} for i in range(400))\n"
        "except OutputError as error: print('refused:', error.remedy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(small)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("refused: free some disk space"), done.stderr
    index = open_index(small, encoder=HashEncoder())
    index.verify()
    assert len(index) == 20


def test_creating_over_something_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="already exists"):
        create(small, encoder=HashEncoder())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError):
        create(tmp_path / "file" / "a.coil", encoder=HashEncoder())


def test_the_lock_is_free_after_use(small: Path) -> None:
    with writer_lock(small):
        assert (small / "writer.lock").read_text() == f"process {os.getpid()}\n"
    with writer_lock(small):
        pass


def test_a_folder_that_can_only_be_read_is_searched(tmp_path: Path) -> None:
    folder = tmp_path / "a.coil"
    with create(folder, encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river bank"}])
        index.compact()
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    code = (
        "import sys, coil.errors as e, coil.indexes.opening as i\n"
        "from tests.hash_encoder import HashEncoder\n"
        "index = i.open_index(sys.argv[1], HashEncoder()); print(index.search('river')[0].doc_id)\n"
        "try: index.delete(['a'])\n"
        "except e.CoilError as error: print(error.remedy)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    if os.geteuid() == 0:  # root may write everywhere, unless it gives that right up
        rights = "-dac_override,-dac_read_search,-fowner"
        command = ["setpriv", "--inh-caps=-all", f"--bounding-set={rights}", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert done.stdout.split("\n")[:2] == ["a", "check the permissions of the folder"], done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="it has no umask")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o664, 0o600, 0o444])
def test_a_change_keeps_the_index_readable_for_the_same_users(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "a.coil"
    with create(folder, encoder=HashEncoder()) as index:
        manifest = folder / "manifest.jsonl"
        manifest.chmod(mode)
        owner, group = (1234, 4321) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
        os.chown(manifest, owner, group)
        with umask(0o077):  # such as that of a cron job
            index.add([{"id": "a", "text": "river bank"}])
            index.add([{"id": "b", "text": "river"}])
        with umask(0):
            index.delete(["b"])
            index.add([{"id": "c", "text": "bank"}])
    files = [*(folder / "segments").iterdir()]
    assert len(files) >= 4
    for path in (manifest, *files, folder / "segments"):
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (owner, group)
        assert oct(found.st_mode & 0o444) == oct(mode & 0o444)
    assert manifest.stat().st_mode & 0o777 == mode
    assert {path.stat().st_mode & 0o333 for path in files} == {0o200}
    assert (folder / "segments").stat().st_mode & 0o111 == (mode & 0o444) >> 2


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no groups")
def test_another_group_may_not_read_what_replaces_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", refuse)
    path = tmp_path / "new"
    for mode, kept in ((0o640, 0o600), (0o664, 0o644), (0o646, 0o646), (0o600, 0o600)):
        with path.open("w") as file:
            Permissions(os.geteuid(), os.getegid() + 1, mode).give_to(file.fileno())
        assert oct(path.stat().st_mode & 0o777) == oct(kept)


def test_damaged_documents_are_named_by_whoever_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "a.coil"
    with create(folder, encoder=HashEncoder()) as index:
        index.add([{"id": str(n), "text": "river bank " * 50, "year": n} for n in range(200)])
    path = only_file(folder, "documents")
    whole = bytearray(path.read_bytes())
    for at in range(8192, len(whole), 97):
        whole[at] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(DamagedSegment), open_index(folder, HashEncoder()) as index:
        index.search("river", 100)
    with pytest.raises(DamagedSegment), open_index(folder, HashEncoder()) as index:
        index.search("river", 100, filter="year > 3")
    with pytest.raises(DamagedSegment), open_index(folder, HashEncoder()) as index:
        index.add([{"id": str(n), "text": "money"} for n in range(200)], on_duplicate="update")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE documents SET text = CAST(X'FF' AS TEXT) WHERE ordinal = 7",
        "UPDATE documents SET fields = '{' WHERE ordinal = 7",
        "UPDATE documents SET fields = '[1]' WHERE ordinal = 7",
        "UPDATE documents SET fields = '{}x' WHERE ordinal = 7",
        "DELETE FROM documents WHERE ordinal = 7",
        "INSERT INTO documents VALUES (70, 'x', 'x', '{}', 0)",
    ],
)
def test_verify_reads_what_a_search_would_read(small: Path, damage: str) -> None:
    """Digests that fit the damaged file: only reading the documents can tell."""
    path = only_file(small, "documents")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage)
    content = path.read_bytes()
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    forge(small, lambda manifest: manifest["segments"][0].update(texts=facts))
    with open_index(small, HashEncoder()) as index, pytest.raises(DamagedSegment, match=path.name):
        index.verify()


def test_compacting_gives_the_space_of_texts_back(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "long", "text": "river " * 100_000}, {"id": "short", "text": "bank"}])
        before = index.inspect().bytes_documents
        index.delete(["long"])
        index.compact()
        assert index.inspect().bytes_documents < before / 4
        assert [hit.doc_id for hit in index.search("bank")] == ["short"]


@pytest.mark.parametrize("kind", ["lists", "documents"])
def test_damage_is_not_copied_into_a_file_that_counts_as_whole(tmp_path: Path, kind: str) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    for name in "ab":
        index.add([{"id": name, "text": "river bank"}])
    index.close()
    path = sorted((tmp_path / "a.coil" / "segments").glob(f"*.{kind}"))[0]
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(DamagedSegment):
        open_index(tmp_path / "a.coil", encoder=HashEncoder()).compact()
    assert path.read_bytes() == bytes(damaged)


def test_lists_are_a_safetensors_file(small: Path) -> None:
    from safetensors.numpy import load_file

    arrays = load_file(only_file(small, "lists"))
    assert len(arrays["vector_scales"]) > len(arrays["posting_rows"]) > 20
    assert int(arrays["list_offsets"][-1]) == len(arrays["vector_scales"])
