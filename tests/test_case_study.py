"""The case study of the paper: which mentions are compared, and what a model without a list has to show."""

from __future__ import annotations

import json

from coil.vectors.onnx_encoder import OnnxEncoder
from experiments.case_study import CASES, study, table
from tests.summing_encoder import SummingEncoder

CASE = {
    "token": "bank",
    "query": "steep bank",
    "relevant": "The bank was steep. Another bank was open.",
    "other": "The account of the bank.",
}


def test_every_mention_of_the_token_is_compared():
    [row] = study(SummingEncoder(), [CASE])
    assert len(row["similarities"]["relevant"]) == 2
    assert len(row["similarities"]["other"]) == 1
    best = max(row["similarities"]["relevant"])
    assert row["similarities"]["relevant"][0] == best
    assert row["right"] is (best > row["similarities"]["other"][0])


def test_the_committed_cases_with_the_bundled_model():
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    rows = {row["token"]: row for row in study(OnnxEncoder(), cases)}
    assert list(rows) == ["cabinet", "pass", "is"]
    assert rows["cabinet"]["right"] is True
    assert rows["pass"]["right"] is True
    assert rows["is"]["similarities"] == {"relevant": [], "other": []}  # a stop word has no list
    assert rows["is"]["right"] is None
    assert "| is | what is njstart | no list | no list |  |" in table("default", list(rows.values()))
