"""Make the golden index: an index of the format that stays, committed, which every later version must read.

    python -m tests.golden FOLDER

It is made once. A version that cannot read it, or finds something else in it, breaks people's indexes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, get_args

from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.tokens.profile import By
from tests.hash_encoder import HashEncoder

QUERIES = ["river bank", "the kubernetes loan", "naïve 東京", "e0277 libxml2", "money money", "needle7x"]
WORDS = "river bank money loan water flow search index token vector kitchen wood".split()


def texts() -> dict[str, str]:
    """Documents with words of every kind; one is long enough for several chunks."""
    made = {
        f"d{i}": f"the {WORDS[i % 12]} {WORDS[i * 7 % 12]} needle{i}x " + f"{WORDS[i % 5]} " * (i % 4)
        for i in range(80)
    }
    made["odd"] = "A naïve libxml2 in 東京 raised E0277; kubernetes, too! 🙂"
    made["long"] = " ".join(f"{WORDS[i % 12]} w{i}" for i in range(120))
    return made


def make(folder: Path) -> None:
    """Several segments, a merge, deletions and updates, with fields."""
    index = create(folder, encoder=HashEncoder(n_t=6, n_c=70), precision="int8+fp16")
    everything = list(texts().items())
    for begin in range(0, len(everything), 30):
        index.add(
            {"id": doc_id, "text": text, "year": 2000 + n}
            for n, (doc_id, text) in enumerate(everything[begin : begin + 30])
        )
    index.update([{"id": "d3", "text": "an updated river bank", "year": 2026}])
    index.delete([f"d{i}" for i in range(0, 80, 9)])
    index.verify()
    (folder.parent / "golden.json").write_text(json.dumps(answers(index), indent=1) + "\n", encoding="utf-8")
    index.close()


def answers(index: Index) -> dict[str, Any]:
    """What the index answers: ids, chunks and scores, by every system."""
    found: dict[str, Any] = {}
    for by in get_args(By):
        for query in QUERIES:
            hits = index.search(query, 20, by=by)
            found[f"{by}: {query}"] = [[hit.doc_id, list(hit.chunk), hit.score.hex()] for hit in hits]
    found["filter"] = [hit.doc_id for hit in index.search("river", 20, "year >= 2010", by="bm25")]
    return found


if __name__ == "__main__":
    make(Path(sys.argv[1]))
