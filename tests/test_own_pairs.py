"""What experiments/own_pairs.py draws: no measured query is trained on, no relevant document is missing."""

from __future__ import annotations

import json
from pathlib import Path

from coil.texts.pairs import read_pairs
from experiments.own_pairs import draw_collection, draw_pairs


def test_no_measured_query_is_among_the_pairs(tmp_path: Path) -> None:
    source = tmp_path / "all.jsonl"
    lines = [{"query": f"question {i // 2}", "positive": f"answer {i}"} for i in range(40)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    asked = {f"question {i}" for i in range(10)}
    drawn = []
    for name in ("a.jsonl", "b.jsonl"):
        assert draw_pairs(source, 8, asked, tmp_path / name) == 8
        drawn.append([(pair.query, pair.positive) for pair in read_pairs(tmp_path / name)])
    assert drawn[0] == drawn[1], "the same pairs every time"
    assert len({query for query, _ in drawn[0]} - asked) == 8
    known = {(line["query"], line["positive"]) for line in lines}
    assert set(drawn[0]) <= known


def test_all_relevant_documents_are_drawn(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    corpus = [{"_id": f"d{i}", "text": f"text {i}"} for i in range(50)]
    queries = [{"_id": f"q{i}", "text": f"query {i}"} for i in range(10)]
    for name, values in (("corpus.jsonl", corpus), ("queries.jsonl", queries)):
        (tmp_path / name).write_text("".join(json.dumps(v) + "\n" for v in values), encoding="utf-8")
    judged = [(f"q{i}", f"d{i}", 1) for i in range(10)] + [(f"q{i}", f"d{i + 20}", 2) for i in range(10)]
    rows = "".join(f"{query}\t{document}\t{grade}\n" for query, document, grade in judged)
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows, encoding="utf-8")
    drawn = draw_collection(tmp_path, queries=4, documents=15)
    chosen = {query.query_id for query in drawn.queries}
    assert len(chosen) == 4
    ids = {document.doc_id for document in drawn.documents}
    assert len(ids) == 15
    assert {document for query, document, _ in judged if query in chosen} <= ids
