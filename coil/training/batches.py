"""Batches: the texts of one training step, a pure function of the data, the recipe and the step number.

Because no state is carried from step to step, a resumed run and every process of a distributed run see the
same batches as an uninterrupted run in one process.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.tokens.tokenizer import Tokenizer
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.training.token_store import TextTokens


@dataclass(frozen=True, eq=False)
class Batch:
    """Q queries and D passages: for each query its positive, followed by its hard negatives."""

    queries: list[TextTokens]  # Q texts, special tokens included
    passages: list[TextTokens]  # D texts
    targets: NDArray[np.int64]  # [Q] the positive's place among the passages
    excluded: NDArray[np.bool_]  # [Q, D] other positives of the query, which are masked
    sources: NDArray[np.int64]  # [Q] the pairs file of each query
    taught: NDArray[np.float32] | None  # [Q, D] teacher scores from a file, NaN where it has none
    n_spans: int = 0


class BatchPlan:
    """Determines the pairs of each step."""

    def __init__(self, data: PairData, options: TrainingOptions, tokenizer: Tokenizer) -> None:
        self._data = data
        self._options = options
        self._tokenizer = tokenizer
        vocabulary = tokenizer.vocabulary
        self._continues = np.array([token.startswith("##") for token in vocabulary])
        if not self._continues.any():  # byte-pair vocabularies mark the start of a word instead
            self._continues = np.array([not token.startswith(("Ġ", "▁")) for token in vocabulary])
        training_sources = data.source_of[data.training]
        self._pools = (
            [data.training[training_sources == s] for s in range(data.n_sources)]
            if options.one_source
            else [data.training]
        )
        self._pools = [pool for pool in self._pools if len(pool)]
        sizes = np.array([len(pool) for pool in self._pools], dtype=np.float64) ** options.source_power
        self._chance = sizes / sizes.sum()
        a_pass = len(data.training) / options.queries
        self.steps = options.steps or (max(1, round(options.epochs * a_pass)) if options.epochs else 0)
        self._source_at, self._turn_at = self._draw_sources()

    def _draw_sources(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each step, its pool and the number of batches drawn from that pool before."""
        rng = np.random.default_rng([self._options.seed, 2])
        source_at = rng.choice(len(self._pools), size=self.steps, p=self._chance)
        turn_at = np.zeros(self.steps, dtype=np.int64)
        for pool in range(len(self._pools)):
            mine = source_at == pool
            turn_at[mine] = np.arange(mine.sum())
        return source_at.astype(np.int64), turn_at

    def pairs_at(self, step: int) -> NDArray[np.int64]:
        """The pairs of a step. Each pass over a pool is in a new random order."""
        source, turn = int(self._source_at[step]), int(self._turn_at[step])
        pool, wanted = self._pools[source], self._options.queries
        start = turn * wanted
        chosen: list[NDArray[np.int64]] = []
        while wanted > 0:
            turn_of_pool, within = divmod(start, len(pool))
            rng = np.random.default_rng([self._options.seed, 3, source, turn_of_pool])
            part = rng.permutation(pool)[within : within + wanted]
            chosen.append(part)
            start, wanted = start + len(part), wanted - len(part)
        return np.concatenate(chosen)

    def batch(self, step: int) -> Batch:
        """The texts of a step."""
        data, options = self._data, self._options
        rng = np.random.default_rng([options.seed, 4, step])
        pairs = self.pairs_at(step)
        queries: list[TextTokens] = []
        passages: list[TextTokens] = []
        names: list[int] = []  # the passage behind each of the batch's passages
        allowed: list[NDArray[np.int64]] = []  # positives of each query
        spans: list[bool] = []
        for pair in pairs.tolist():
            query, positive = int(data.query_of[pair]), int(data.passage_of[pair])
            hard = data.negatives[query]
            take = min(options.hard_negatives, len(hard))
            group = [positive, *(rng.choice(hard, size=take, replace=False).tolist() if take else [])]
            group += rng.integers(len(data.passages), size=options.hard_negatives - take).tolist()
            texts = [data.passages[passage] for passage in group]
            query_tokens, positives = data.queries[query], data.positives[query]
            spans.append(False)
            if rng.random() < options.spans:
                span, rest = self._cut_span(texts[0], rng)
                if len(span):
                    spans[-1] = True
                    query_tokens, positives = span, np.array([positive])
                    texts[0] = rest
                    if rng.random() < options.span_titles:
                        texts = [self._with_title(p, t) for p, t in zip(group, texts, strict=True)]
            queries.append(wrap(query_tokens, self._tokenizer, options.lengths[0]))
            passages += [wrap(text, self._tokenizer, options.lengths[1]) for text in texts]
            names += group
            allowed.append(positives)
        targets = np.arange(len(pairs)) * (1 + options.hard_negatives)
        excluded = np.stack([np.isin(names, positives) for positives in allowed])
        excluded[np.arange(len(pairs)), targets] = False
        taught = self._taught(pairs, names, spans) if options.teacher == "file" else None
        return Batch(queries, passages, targets, excluded, data.source_of[pairs], taught, sum(spans))

    def _with_title(self, passage: int, text: TextTokens) -> TextTokens:
        title = int(self._data.title_of[passage])
        return TextTokens.join(self._data.queries[title], text) if title >= 0 else text

    def _cut_span(self, text: TextTokens, rng: np.random.Generator) -> tuple[TextTokens, TextTokens]:
        """A span of whole words as the query, and its passage, from which the span is usually removed."""
        starts = np.flatnonzero(~self._continues[text.ids])
        words = int(rng.integers(3, 25))
        if len(starts) < words + 8:  # too little would be left to find
            return text[:0], text
        first = int(rng.integers(0, len(starts) - words + 1))
        begin = int(starts[first])
        end = int(starts[first + words]) if first + words < len(starts) else len(text)
        if rng.random() < self._options.span_cut:
            return text[begin:end], TextTokens.join(text[:begin], text[end:])
        return text[begin:end], text

    def _taught(self, pairs: NDArray[np.int64], names: list[int], spans: list[bool]) -> NDArray[np.float32]:
        """The teacher scores of each query, NaN where there is none; queries made from spans have none."""
        scores = np.full((len(pairs), len(names)), np.nan, dtype=np.float32)
        places = np.array(names)
        for row, pair in enumerate(pairs.tolist()):
            if spans[row]:
                continue
            passages, values = self._data.teacher.get(int(self._data.query_of[pair]), ([], []))
            for passage, value in zip(passages, values, strict=True):
                scores[row, places == passage] = value
        return scores


def wrap(text: TextTokens, tokenizer: Tokenizer, length: int) -> TextTokens:
    """A text as input of the language model: at most `length` tokens, with special tokens at both ends."""
    prefix, suffix = (TextTokens.without_lists(ids) for ids in (tokenizer.prefix, tokenizer.suffix))
    return TextTokens.join(prefix, text[: length - len(prefix) - len(suffix)], suffix)
