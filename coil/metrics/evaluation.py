"""Evaluation of a run against judgements, with the same values as trec_eval.

The measures are those of ir_measures, which uses trec_eval's own code for nDCG, recall and precision. Two
decisions are made here, because the providers behind ir_measures differ:

- Order. trec_eval sorts a query's documents by score as a 32-bit float, descending, and ties by document id,
  descending, byte by byte; it ignores the order of the lines and the rank column. Other providers (including
  that of RR@10) break ties the other way round. Here, every measure uses trec_eval's order.
- Mean. It is over all judged queries, as with `trec_eval -c`: a query that is missing from the run counts as
  0. Queries without judgements are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coil.errors import InputError, require

DEFAULT_MEASURES = ("nDCG@10", "RR@10", "R@100", "R@1000")
EXAMPLES = "nDCG@10, nDCG, RR@10, RR, R@100, P@5, AP, AP(rel=2), Rprec, Success@1, Judged@10"

_MEASURE = re.compile(r"(?:[^\s,(]|\([^)]*\))+")  # parameters in brackets may contain commas and spaces
_DEEPEST_CUTOFF = 2**31 - 1


@dataclass(frozen=True)
class Evaluation:
    """The values of the measures for one run."""

    measures: tuple[str, ...]
    queries: tuple[str, ...]
    """All judged queries."""
    unanswered: tuple[str, ...]
    """The judged queries for which the run has no document."""
    values: dict[str, dict[str, float]]
    """Measure → query → value."""
    means: dict[str, float]
    """Measure → mean over the judged queries (the sum, for measures that count)."""


def split_measures(text: str) -> list[str]:
    """The names in `nDCG@10 RR@10`, separated by spaces or commas."""
    return _MEASURE.findall(text)


def parse_measures(names: Iterable[str]) -> list[Any]:
    """The ir_measures objects of these names, without duplicates; an unknown name is an InputError."""
    package = require("ir_measures", "eval")
    found: dict[str, Any] = {}
    for name in names:
        try:
            measure = package.parse_measure(name)
            cutoff = measure.params.get("cutoff", 1)
            if isinstance(cutoff, bool) or not isinstance(cutoff, int) or not 0 < cutoff <= _DEEPEST_CUTOFF:
                raise ValueError("a cutoff must be a whole number of at least 1")
            package.evaluator([measure], {"q": {"d": 1}})  # fails if no installed provider supports it
        except (ValueError, NameError, AssertionError, TypeError, KeyError, RuntimeError) as error:
            reason = next(iter(str(error).splitlines()), "")
            raise InputError(
                f"{name[:80]!r} is not a supported measure: {reason}",
                f"use measures of ir_measures, such as {EXAMPLES}",
            ) from error
        found.setdefault(str(measure), measure)
    if not found:
        raise InputError("no measures were given", f"use measures of ir_measures, such as {EXAMPLES}")
    return list(found.values())


def evaluate(
    judgements: Mapping[str, Mapping[str, int]],
    run: Mapping[str, Mapping[str, float]],
    measures: Iterable[str] = DEFAULT_MEASURES,
) -> Evaluation:
    """Measure a run (query → document → score) against judgements (query → document → relevance)."""
    if not judgements:
        raise InputError("there are no judgements", "pass a qrels file that contains some")
    parsed = parse_measures(measures)
    package = require("ir_measures", "eval")
    queries = tuple(judgements)
    qrels: dict[str, dict[str, int]] = {}
    ranked: dict[str, dict[str, float]] = {}
    for number, query_id in enumerate(queries):
        # trec_eval's code needs plain C strings, so ids are replaced by numbers, and scores have no ties.
        order = trec_order(query_id, run.get(query_id, {}))
        numbers = {doc_id: str(n) for n, doc_id in enumerate(dict.fromkeys([*order, *judgements[query_id]]))}
        judged = {numbers[doc_id]: relevance for doc_id, relevance in judgements[query_id].items()}
        # If all are negative, that code reads uninitialized memory and may hang; 0 means the same.
        none_known = all(relevance < 0 for relevance in judged.values())
        qrels[str(number)] = dict.fromkeys(judged, 0) if none_known else judged
        if order:
            ranked[str(number)] = {numbers[doc_id]: float(len(order) - n) for n, doc_id in enumerate(order)}
    values: dict[str, dict[str, float]] = {str(measure): {} for measure in parsed}
    for metric in package.iter_calc(parsed, qrels, ranked):
        values[str(metric.measure)][queries[int(metric.query_id)]] = float(metric.value)
    means = {}
    for measure in parsed:
        aggregate = measure.aggregator()
        for query_id in queries:
            aggregate.add(values[str(measure)].setdefault(query_id, 0.0))
        means[str(measure)] = float(aggregate.result())
    return Evaluation(
        measures=tuple(values),
        queries=queries,
        unanswered=tuple(query_id for query_id in queries if not run.get(query_id)),
        values=values,
        means=means,
    )


def trec_order(query_id: str, scores: Mapping[str, float]) -> list[str]:
    """The documents of one query as trec_eval orders them."""
    doc_ids = list(scores)
    given = np.array([scores[doc_id] for doc_id in doc_ids], dtype=np.float64)
    if not np.isfinite(given).all():
        raise InputError(
            f"query {query_id[:80]!r} has a score that is not a finite number", "correct the run"
        )
    with np.errstate(over="ignore"):
        rounded = given.astype(np.float32).tolist()
    # Python compares strings by code point, which is the order of their UTF-8 bytes.
    best_first = sorted(zip(rounded, doc_ids, strict=True), reverse=True)
    return [doc_id for _, doc_id in best_first]
