"""An index on disk: damage, locks, snapshots, full and read-only disks, and formats of old."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from coil.errors import (
    CoilError,
    DamagedCatalog,
    DamagedSegment,
    IndexLocked,
    MissingIndex,
    MissingSegment,
    NewerIndex,
    OptionMismatch,
    OutputError,
)
from coil.indexes.index import create, open_index
from coil.storage.lock import writer_lock
from tests.hash_encoder import QUERIES, HashEncoder, answers
from tests.tiny import random_texts

# ---- damage


@pytest.fixture
def small(tmp_path: Path) -> Path:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    index.add({"id": i, "text": text} for i, text in enumerate(random_texts(20)))
    index.close()
    return tmp_path / "a.coil"


def only_segment(folder: Path) -> Path:
    [path] = (folder / "segments").iterdir()
    return path


def test_every_flipped_byte_is_found(small: Path) -> None:
    path = only_segment(small)
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


def test_other_damage_has_a_name_each(small: Path) -> None:
    path = only_segment(small)
    content = path.read_bytes()
    for cut in (0, 4, 100, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(DamagedSegment):
            open_index(small, encoder=HashEncoder())
    path.unlink()
    with pytest.raises(MissingSegment, match=path.name):
        open_index(small, encoder=HashEncoder())
    path.write_bytes(content)
    import sqlite3

    with sqlite3.connect(small / "catalog.sqlite") as connection:
        connection.execute("UPDATE settings SET value = '99' WHERE name = 'format'")
    with pytest.raises(NewerIndex, match="format 99"):
        open_index(small)
    (small / "catalog.sqlite").write_bytes(b"not a database, but long enough to look at" * 100)
    for side in ("-wal", "-shm"):
        (small / f"catalog.sqlite{side}").unlink(missing_ok=True)
    with pytest.raises(CoilError, match=r"catalog\.sqlite cannot be read"):
        open_index(small)
    with pytest.raises(MissingIndex):
        open_index(small / "nothing")


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
    stray = small / "segments" / "0000000099.safetensors"
    stray.write_bytes(b"half a segment")
    (small / "segments" / "0000000098.safetensors.partial").write_bytes(b"less")
    index = open_index(small, encoder=HashEncoder())
    index.add([{"id": "new", "text": "river"}])
    assert not stray.exists()
    assert len(list((small / "segments").iterdir())) == index.inspect().segments


def test_a_full_disk_leaves_the_old_state(small: Path) -> None:
    code = (
        "import resource, sys, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from tests.hash_encoder import HashEncoder; from coil.indexes.index import open_index\n"
        "from coil.errors import OutputError\n"
        "index = open_index(sys.argv[1], encoder=HashEncoder())\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, 120_000))\n"
        "try: index.add({'id': f'n{i}', 'text': 'river bank ' * 20} for i in range(400))\n"
        "except OutputError as error: print('refused:', error.remedy)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(small)], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("refused: free some space"), done.stderr
    index = open_index(small, encoder=HashEncoder())
    index.verify()
    assert len(index) == 20


def test_creating_over_something_is_refused(small: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="exists already"):
        create(small, encoder=HashEncoder())
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError):
        create(tmp_path / "file" / "a.coil", encoder=HashEncoder())


def test_the_lock_is_free_after_use(small: Path) -> None:
    with writer_lock(small):
        assert (small / "writer.lock").read_text() == f"process {os.getpid()}\n"
    with writer_lock(small):
        pass


def test_an_index_of_format_1_opens_for_ever(tmp_path: Path) -> None:
    """Made once and committed: segments, a long document, a deletion, an update."""
    data = Path(__file__).parent / "data"
    folder = Path(shutil.copytree(data / "golden-1.coil", tmp_path / "golden.coil"))
    index = open_index(folder, encoder=HashEncoder())
    index.verify()
    expected = json.loads((data / "golden-1.json").read_text())
    found = [[[doc_id, score, list(chunk)] for doc_id, score, chunk in hits] for hits in answers(index)]
    assert [[row[0] for row in hits] for hits in found] == [[row[0] for row in hits] for hits in expected]
    for ours, theirs in zip(chain(*found), chain(*expected), strict=True):
        assert ours[2] == theirs[2]
        assert ours[1] == pytest.approx(theirs[1], abs=1e-4)  # queries had no 15 bits then
    assert not index.has("d3")
    assert index.document("d5").text == "river bank money"


@pytest.mark.parametrize("of_format", [2, 3])
def test_an_index_with_bounds_opens_for_ever(tmp_path: Path, of_format: int) -> None:
    """Made once and committed, with a precise form beside int8; its scores do not change by a bit."""
    data = Path(__file__).parent / "data"
    folder = Path(shutil.copytree(data / f"golden-{of_format}.coil", tmp_path / "golden.coil"))
    index = open_index(folder, encoder=HashEncoder())
    index.verify()
    found = [[[doc_id, score, list(chunk)] for doc_id, score, chunk in hits] for hits in answers(index)]
    assert found == json.loads((data / "golden-2.json").read_text())
    assert index.answer_many(QUERIES)[0].stats.exact_in == "fp16"


def test_a_folder_that_can_only_be_read_is_searched(tmp_path: Path) -> None:
    folder = tmp_path / "a.coil"
    with create(folder, encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river bank"}])
        index.compact()
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    code = (
        "import sys, coil.indexes.index as i; from tests.hash_encoder import HashEncoder\n"
        "index = i.open_index(sys.argv[1], HashEncoder()); print(index.search('river')[0].doc_id)\n"
        "try: index.delete(['a'])\n"
        "except i.CoilError as error: print(error.remedy)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    if os.geteuid() == 0:  # root may write everywhere, unless it gives that right up
        rights = "-dac_override,-dac_read_search,-fowner"
        command = ["setpriv", "--inh-caps=-all", f"--bounding-set={rights}", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert done.stdout.split("\n")[:2] == ["a", "check the rights on the folder"], done.stderr


def test_a_damaged_catalog_is_named_by_whoever_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "a.coil"
    with create(folder, encoder=HashEncoder()) as index:
        index.add([{"id": str(n), "text": "river bank " * 50} for n in range(200)])
        index.compact()
    path = folder / "catalog.sqlite"
    whole = bytearray(path.read_bytes())
    for at in range(8192, len(whole), 97):
        whole[at] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(DamagedCatalog), open_index(folder, HashEncoder()) as index:
        index.search("river", 100)
    with pytest.raises(DamagedCatalog), open_index(folder, HashEncoder()) as index:
        index.add([{"id": str(n), "text": "money"} for n in range(200)], on_duplicate="update")


def test_compacting_gives_the_catalogs_space_back(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "long", "text": "river " * 100_000}, {"id": "short", "text": "bank"}])
        index.compact()
        before = (index.folder / "catalog.sqlite").stat().st_size
        index.delete(["long"])
        index.compact()
        assert (index.folder / "catalog.sqlite").stat().st_size < before / 4
        assert [hit.doc_id for hit in index.search("bank")] == ["short"]


def test_damage_is_not_copied_into_a_file_that_counts_as_whole(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    for name in "ab":
        index.add([{"id": name, "text": "river bank"}])
    index.close()
    path = sorted((tmp_path / "a.coil" / "segments").iterdir())[0]
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(DamagedSegment):
        open_index(tmp_path / "a.coil", encoder=HashEncoder()).compact()
    assert path.read_bytes() == bytes(damaged)
