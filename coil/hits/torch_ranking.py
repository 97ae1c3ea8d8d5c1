"""Ranking with PyTorch, for GPUs: the paper's way, with the lists resident on the device.

Matrix products over the lists that a batch of queries uses, the maximum per row by scatter, a sum, and the k
best. The arithmetic is that of `coil.scores.products`, so the scores are the same bits as on the CPU:
products of int8 are whole numbers that fp32 holds exactly, sums of fp16 and fp32 products keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.errors import OptionMismatch, require
from coil.hits.ranked import Ranking
from coil.hits.ranking import Counts, Limits, Rankings, check_deadline, mask_of
from coil.lists.precision import SCALES
from coil.lists.segment import Segment
from coil.lists.snapshot import LiveSegment
from coil.scores.products import GRID, QueryVector
from coil.scores.scorer import listed_tokens
from coil.tokens.list_keys import ListKeys
from coil.tokens.profile import ScoringProfile
from coil.vectors.token_vectors import TokenVectors

Tensor = Any  # torch is imported only where it is used
AT_ONCE = 64  # queries whose scores are on the device at the same time
_PARTS = 16
NOTHING = np.iinfo(np.int64).min


class _Resident:
    """A segment's arrays on the device."""

    def __init__(self, torch: Any, segment: Segment, device: Any) -> None:
        def put(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.array(array)).to(device)

        mentions = segment.vectors[:]
        self.values, self.sentences = put(mentions.values), put(segment.sentences.values)
        self.scales = None if mentions.scales is None else put(SCALES[mentions.scales])
        self.sentence_scales = (
            None if segment.sentences.scales is None else put(SCALES[segment.sentences.scales])
        )
        self.rows = put(segment.mention_rows.astype(np.int64))
        documents, inverse = np.unique(segment.row_documents, return_inverse=True)
        self.documents, self.document_of = documents, put(inverse.astype(np.int64))
        self.segment = segment


class TorchRanker:
    """Ranks every row of every segment on a device."""

    def __init__(
        self, segments: Sequence[LiveSegment], profile: ScoringProfile, keys: ListKeys, device: str = "cuda"
    ) -> None:
        self._torch = torch = require("torch", "gpu")
        try:
            self._device = torch.device(device)
            torch.zeros(1, device=self._device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise OptionMismatch(
                f"the device {device!r} cannot be used: {reason}", "search on the CPU"
            ) from error
        torch.backends.cuda.matmul.allow_tf32 = False  # whole numbers up to 2^24 must stay exact
        self._segments, self._profile, self._keys = segments, profile, keys
        self._resident = [_Resident(torch, live.segment, self._device) for live in segments]

    def rank(self, queries: Sequence[TokenVectors], limits: Limits) -> Rankings:
        """The k best of each query, some queries at a time."""
        rankings: Rankings = []
        for begin in range(0, len(queries), AT_ONCE):
            rankings += self._rank_some(queries[begin : begin + AT_ONCE], limits)
        return rankings

    def _rank_some(self, queries: Sequence[TokenVectors], limits: Limits) -> Rankings:
        found: list[list[Ranking]] = [[] for _ in queries]
        counts = [[0, 0] for _ in queries]
        tokens = [
            [(list_id, QueryVector.of(vector)) for list_id, vector in listed_tokens(query, self._keys)]
            for query in queries
        ]
        for number, (live, resident) in enumerate(zip(self._segments, self._resident, strict=True)):
            check_deadline(limits)
            if not live.segment.n_rows:
                continue
            scores = self._scores(resident, queries, tokens, counts)
            for place, ranked in enumerate(self._best(number, live, resident, scores, queries, limits)):
                found[place].append(ranked)
        return [
            (Ranking.joined(of_query, limits.k), Counts(mentions_scored=mentions, sentences_scored=sentences))
            for of_query, (mentions, sentences) in zip(found, counts, strict=True)
        ]

    def _scores(
        self,
        resident: _Resident,
        queries: Sequence[TokenVectors],
        tokens: Sequence[Sequence[tuple[int, QueryVector]]],
        counts: list[list[int]],
    ) -> Tensor:
        """[queries, rows] in multiples of 2^-32."""
        torch, segment = self._torch, resident.segment
        scores = torch.zeros((len(queries), segment.n_rows), dtype=torch.int64, device=self._device)
        users: dict[int, list[tuple[int, QueryVector]]] = {}
        for place, of_query in enumerate(tokens):
            for list_id, vector in of_query:
                users.setdefault(list_id, []).append((place, vector))
        for list_id, uses in users.items():
            mentions = segment.mentions_of(list_id)
            if mentions.stop == mentions.start:
                continue
            scales = None if resident.scales is None else resident.scales[mentions]
            vectors = [vector for _, vector in uses]
            products = self._products(resident.values[mentions], scales, vectors, self._sum_in_turn)
            best = torch.full((segment.n_rows, len(uses)), -torch.inf, device=self._device)
            index = resident.rows[mentions][:, None].expand(-1, len(uses))
            best.scatter_reduce_(0, index, products, "amax")  # [rows, uses]
            if self._profile.floor:
                best = best.clamp(min=0.0)
            grid = self._to_grid(torch.where(torch.isinf(best), 0.0, best)).T
            places = torch.tensor([place for place, _ in uses], device=self._device)
            scores.index_add_(0, places, grid)
            for place, _ in uses:
                counts[place][0] += mentions.stop - mentions.start
        dense = [place for place, query in enumerate(queries) if query.sentence is not None]
        if dense and segment.sentences.dim:
            sentence_vectors = [_query_sentence(queries[place]) for place in dense]
            products = self._products(
                resident.sentences, resident.sentence_scales, sentence_vectors, self._sum_in_halves
            )
            scores[torch.tensor(dense, device=self._device)] += self._to_grid(products).T
            for place in dense:
                counts[place][1] += segment.n_rows
        return scores

    def _products(
        self, values: Tensor, scales: Tensor | None, vectors: Sequence[QueryVector], add: Any
    ) -> Tensor:
        """[vectors stored, vectors of queries]"""
        torch = self._torch
        if scales is None:
            exact = torch.from_numpy(np.stack([vector.exact for vector in vectors])).to(self._device)
            return add(values.float(), exact)
        codes = np.stack([vector.codes for vector in vectors], axis=1).astype(np.int32)
        halves = np.concatenate([codes >> 7, codes & 127], axis=1).astype(np.float32)
        sums = (values.float() @ torch.from_numpy(halves).to(self._device)).to(torch.int64)
        whole = (sums[:, : len(vectors)] * 128 + sums[:, len(vectors) :]).to(torch.int32).float()
        of_query = torch.tensor([float(vector.scale) for vector in vectors], device=self._device)
        return whole * (scales[:, None] * of_query)

    def _sum_in_turn(self, values: Tensor, exact: Tensor) -> Tensor:
        sums = self._torch.zeros((len(values), len(exact)), device=self._device)
        for d in range(values.shape[1]):
            sums += values[:, d, None] * exact[None, :, d]
        return sums

    def _sum_in_halves(self, values: Tensor, exact: Tensor) -> Tensor:
        torch = self._torch
        missing = -values.shape[1] % _PARTS
        values, exact = (torch.nn.functional.pad(array, (0, missing)) for array in (values, exact))
        columns = []
        for vector in exact:
            sums = torch.zeros((len(values), _PARTS), device=self._device)
            for begin in range(0, values.shape[1], _PARTS):
                sums += values[:, begin : begin + _PARTS] * vector[begin : begin + _PARTS]
            half = _PARTS // 2
            while half:
                sums = sums[:, :half] + sums[:, half : 2 * half]
                half //= 2
            columns.append(sums[:, 0])
        return torch.stack(columns, dim=1)

    def _to_grid(self, products: Tensor) -> Tensor:
        return (products.double() * GRID).round().to(self._torch.int64)

    def _best(
        self,
        number: int,
        live: LiveSegment,
        resident: _Resident,
        scores: Tensor,
        queries: Sequence[TokenVectors],
        limits: Limits,
    ) -> list[Ranking]:
        """The k best documents of a segment for each query: a document scores what its best row scores."""
        torch = self._torch
        n_documents = len(resident.documents)
        k = min(max(limits.k, 0), n_documents)
        if not k:
            return [Ranking.of([]) for _ in queries]
        of_document = torch.full((len(queries), n_documents), NOTHING, dtype=torch.int64, device=self._device)
        index = resident.document_of[None].expand(len(queries), -1)
        of_document.scatter_reduce_(1, index, scores, "amax")
        mask = mask_of(live, limits.allowed)
        if mask is not None:
            gone = np.ones(n_documents, dtype=bool)
            gone[resident.document_of.cpu().numpy()[mask.astype(bool)]] = False
            of_document[:, torch.from_numpy(gone).to(self._device)] = NOTHING
        sparse = [place for place, query in enumerate(queries) if query.sentence is None]
        if sparse:  # without a sentence part, a score of exactly 0 is no hit
            chosen = of_document[sparse]
            of_document[sparse] = torch.where(chosen == 0, NOTHING, chosen)
        of_document = torch.where(of_document < limits.at_least, NOTHING, of_document)
        # Which of the documents that tie at the k-th place topk picks is open: it only tells the k-th score.
        last = torch.topk(of_document, k, dim=1).values[:, -1:]
        kept = (of_document >= last) & (of_document > NOTHING)
        ranked = []
        for place in range(len(queries)):
            places = torch.nonzero(kept[place])[:, 0]
            values = of_document[place, places].cpu().numpy()
            order = np.argsort(-values, kind="stable")[:k]
            at = places.cpu().numpy()[order]
            of_rows = scores[place].cpu().numpy() if len(resident.documents) != live.segment.n_rows else None
            rows = _best_rows(live.segment, resident, at, of_rows)
            of_segment = np.full(len(at), number, dtype=np.int32)
            ranked.append(Ranking(values[order], resident.documents[at], of_segment, rows))
        return ranked


def _best_rows(
    segment: Segment, resident: _Resident, documents: NDArray[np.intp], scores: NDArray[np.int64] | None
) -> NDArray[np.int32]:
    """The best row of each document; where each document has one row, that one."""
    if scores is None:
        return documents.astype(np.int32)
    ordinals = resident.documents[documents]
    begins = np.searchsorted(segment.row_documents, ordinals)
    ends = np.searchsorted(segment.row_documents, ordinals + 1)
    rows = (b + np.argmax(scores[b:e]) for b, e in zip(begins, ends, strict=True))
    return np.fromiter(rows, dtype=np.int32, count=len(documents))


def _query_sentence(query: TokenVectors) -> QueryVector:
    assert query.sentence is not None
    return QueryVector.of(query.sentence)
