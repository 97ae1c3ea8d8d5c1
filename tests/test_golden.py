"""The golden index: made once in the format that stays, read by every version since."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from coil.indexes.opening import open_index
from tests.golden import answers, texts
from tests.hash_encoder import HashEncoder

DATA = Path(__file__).resolve().parent / "data"


def test_the_golden_index_answers_as_it_always_did(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA / "golden.coil", tmp_path / "golden.coil"))
    expected = json.loads((DATA / "golden.json").read_text(encoding="utf-8"))
    with open_index(folder, encoder=HashEncoder(n_t=6, n_c=70)) as index:
        index.verify()
        assert answers(index) == expected
        assert index.document("odd").text == texts()["odd"]
        assert index.document("d3").fields == {"year": 2026}
        assert not index.has("d9")
        index.compact()
        assert answers(index) == expected
        index.add([{"id": "new", "text": "one more river"}])
        index.delete(["new"])
        assert answers(index) == expected
