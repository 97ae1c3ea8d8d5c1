"""The paper's case study: one token in two senses, and the similarity of each to the token in the query.

    python -m experiments.case_study [MODEL]... [--save]

Each case of experiments/case_study.json has a token, a query that contains it, a relevant text with the same
sense, and another text with another sense. The similarities are those that an explanation shows: the
product of the two token vectors, before α, β and weights. A case is correct if the relevant text has the
higher one. A model without a list for the token (the default form has none for stop words such as "is") has
no similarity. MODEL is the bundled one by default; --save writes experiments/results/case-study.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.stamp import stamp, write_result
from coil.explanations.explanation import Explanation, explain
from coil.texts.values import Document
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder

HERE = Path(__file__).resolve().parent
CASES = HERE / "case_study.json"


def main() -> None:
    """Print a table a model and, if asked to, write the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", help="model folders; default: the bundled model")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    cases = json.loads(CASES.read_text(encoding="utf-8"))
    found = {}
    for name in arguments.models or ["default"]:
        encoder = OnnxEncoder(name)
        found[Path(name).name] = {"fingerprint": encoder.fingerprint, "cases": study(encoder, cases)}
        print(table(Path(name).name, found[Path(name).name]["cases"]))
    if arguments.save:
        path = write_result("case-study", {**stamp(), "models": found}, HERE / "results" / "case-study.json")
        print(f"wrote {path}")


def study(encoder: Encoder, cases: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """The similarities of all mentions of each case's token, in the relevant text and in the other."""
    rows = []
    for case in cases:
        relevant, other = (
            mentions(explain(encoder, case["query"], Document(name, case[name])), case["token"])
            for name in ("relevant", "other")
        )
        right = max(relevant) > max(other) if relevant and other else None
        rows.append({**case, "similarities": {"relevant": relevant, "other": other}, "right": right})
    return rows


def mentions(explanation: Explanation, token: str) -> list[float]:
    """How similar the mentions of a token are to that of the query, the best first; none without a list."""
    return [
        round(similarity, 4)
        for match in explanation.matches
        if match.query_token.lower() == token
        for similarity in (match.similarity, *(mention.similarity for mention in match.runner_ups))
    ]


def table(name: str, rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = [f"\n{name}", "| token | query | relevant text | other text | |", "|---|---|---:|---:|---|"]
    for row in rows:
        shown = [
            " ".join(f"{value:.2f}" for value in row["similarities"][kind]) or "no list"
            for kind in ("relevant", "other")
        ]
        verdict = {True: "right", False: "wrong", None: ""}[row["right"]]
        lines.append(f"| {row['token']} | {row['query']} | {shown[0]} | {shown[1]} | {verdict} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
