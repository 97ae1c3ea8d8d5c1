"""Ranking with PyTorch, for GPUs: as in the paper, with the lists resident on the device.

The steps: matrix products over the lists that a batch of queries uses, the maximum per row by scatter, the
sum, and the k best. The arithmetic is that of `coil.scores.products`, so the scores are bit-identical to
those on the CPU: products of int8 are integers that fp32 represents exactly, and fp16 and fp32 products are
added in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.compiled import compiled_code
from coil.errors import OptionMismatch, require
from coil.hits.rankers import Counts, Rankings, Selection, check_deadline, mask_of
from coil.hits.ranking import Ranking
from coil.lists.precision import SCALES
from coil.lists.segment import LiveSegment, Segment
from coil.scores.prepared import PreparedQuery
from coil.scores.products import GRID, QueryVector

Tensor = Any  # torch is imported only when it is used
AT_ONCE = 64  # most queries whose scores are on the device at the same time
MOST_SCORES = 1 << 28  # on the device at the same time
_PARTS = 16
NOTHING = np.iinfo(np.int64).min


class _Resident:
    """The arrays of all segments on the device, joined: lists in one piece, rows numbered consecutively."""

    def __init__(self, torch: Any, segments: Sequence[LiveSegment], device: Any) -> None:
        self._torch, self._device = torch, device
        parts = [live.segment for live in segments]
        self.starts = np.cumsum([0, *(part.n_rows for part in parts)])  # first row of each segment
        self._join_lists(parts)
        self.sentences = [
            (
                self._put(np.concatenate([part.values for part in of_part])),
                None
                if of_part[0].scales is None
                else self._put(np.concatenate([SCALES[part.scales] for part in of_part])),
            )
            for of_part in zip(*(part.sentences.parts for part in parts), strict=True)
        ]
        self.row_lengths = self._put(np.concatenate([part.row_lengths for part in parts]).astype(np.float32))
        of_rows = np.concatenate([part.row_documents for part in parts])
        self.documents, self.document_of_row, self.row_counts = np.unique(
            of_rows, return_inverse=True, return_counts=True
        )  # ascending, so that positions have the same order as ordinals
        self.document_of = self._put(self.document_of_row)
        self.is_row_document = np.array_equal(self.document_of_row, np.arange(len(of_rows)))
        # The rows of a document are adjacent.
        order = np.argsort(self.document_of_row, kind="stable")
        self.first_rows = order[np.concatenate([[0], np.cumsum(self.row_counts)[:-1]])]

    @property
    def n_rows(self) -> int:
        return int(self.starts[-1])

    def _put(self, array: NDArray[Any]) -> Tensor:
        return self._torch.from_numpy(np.array(array)).to(self._device)

    def _join_lists(self, parts: Sequence[Segment]) -> None:
        names = [list(part.dictionary) for part in parts]
        keys = sorted(set().union(*names))
        self._places = {key: place for place, key in enumerate(keys)}
        lengths = np.zeros((len(parts), len(keys)), dtype=np.int64)
        for number, part in enumerate(parts):
            places_of = [self._places[key] for key in names[number]]
            lengths[number, places_of] = np.diff(part.list_offsets.astype(np.int64))
        self.offsets = np.concatenate([[0], np.cumsum(lengths.sum(axis=0))])
        begins = self.offsets[:-1] + np.cumsum(lengths, axis=0) - lengths  # [segments, lists]
        rows = np.zeros(int(self.offsets[-1]), dtype=np.int64)
        stored = parts[0].vectors[:0]
        values = np.zeros((len(rows), stored.dim), dtype=stored.values.dtype)
        scales = None if stored.scales is None else np.zeros(len(rows), dtype=np.float32)
        for number, part in enumerate(parts):
            mine = lengths[number]
            shift = np.repeat(begins[number] - (np.cumsum(mine) - mine), mine)
            places = np.arange(part.n_mentions) + shift
            mentions = part.vectors[:]
            values[places] = mentions.values
            if scales is not None:
                scales[places] = SCALES[mentions.scales]
            rows[places] = part.mention_rows().astype(np.int64) + self.starts[number]
        # The mentions of a row are adjacent in a list: they form a run. A list consists of runs, one per row.
        first = np.diff(rows, prepend=-1) != 0
        first[self.offsets[:-1][np.diff(self.offsets) > 0]] = True
        run = np.cumsum(first) - 1
        self.run_offsets = np.concatenate([[0], np.cumsum(first)])[self.offsets]
        self.values, self.run, self.run_rows = self._put(values), self._put(run), self._put(rows[first])
        self.run_counts = self._put(np.bincount(run, minlength=int(first.sum())).astype(np.float32))
        self.scales = None if scales is None else self._put(scales)

    def find(self, key: str) -> tuple[slice, slice] | None:
        """The mentions and the runs of a list."""
        place = self._places.get(key)
        if place is None:
            return None
        return slice(*self.offsets[place : place + 2]), slice(*self.run_offsets[place : place + 2])


class TorchRanker:
    """Ranks documents on a device by scoring every row of every segment."""

    def __init__(self, segments: Sequence[LiveSegment], device: str = "cuda") -> None:
        self._torch = torch = require("torch", "gpu")
        try:
            self._device = torch.device(device)
            torch.zeros(1, device=self._device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise OptionMismatch(
                f"the device {device!r} cannot be used: {reason}", "search on the CPU"
            ) from error
        torch.backends.cuda.matmul.allow_tf32 = False  # integers up to 2^24 must stay exact
        self._segments = segments
        self._resident = _Resident(torch, segments, self._device) if segments else None

    def rank(self, queries: Sequence[PreparedQuery], selection: Selection) -> Rankings:
        """The k best documents of each query, some queries at a time."""
        rankings: Rankings = []
        if self._resident is None or not self._resident.n_rows or selection.k <= 0:
            return [(Ranking.of([]), Counts()) for _ in queries]
        at_once = max(1, min(AT_ONCE, MOST_SCORES // self._resident.n_rows))
        for begin in range(0, len(queries), at_once):
            check_deadline(selection)
            some = queries[begin : begin + at_once]
            counts = [[0, 0] for _ in some]
            with compiled_code():
                scores = self._scores(self._resident, some, counts)
                found = self._best(self._resident, scores, some, selection)
            rankings += [
                (ranking, Counts(mentions_scored=mentions, sentences_scored=sentences))
                for ranking, (mentions, sentences) in zip(found, counts, strict=True)
            ]
        return rankings

    def _scores(
        self, resident: _Resident, queries: Sequence[PreparedQuery], counts: list[list[int]]
    ) -> Tensor:
        """The scores [queries, rows] in multiples of 2^-32."""
        torch, n_rows = self._torch, resident.n_rows
        scores = torch.zeros((len(queries), n_rows), dtype=torch.int64, device=self._device)
        users: dict[str, list[tuple[int, float, QueryVector]]] = {}
        for place, query in enumerate(queries):
            for key, base, vector in query:
                users.setdefault(key, []).append((place, float(base), vector))
        for key, uses in users.items():
            found = resident.find(key)
            if found is None:
                continue
            mentions, runs = found
            best = self._best_products(resident, mentions, runs, [vector for _, _, vector in uses])
            parts = best + torch.tensor([base for _, base, _ in uses], device=self._device)
            floored = torch.tensor([queries[place].floor for place, _, _ in uses], device=self._device)
            parts = torch.where(floored, parts.clamp(min=0.0), parts)  # [runs, uses]
            parts = self._factors(resident, runs, [queries[place] for place, _, _ in uses]) * parts
            places = torch.tensor([place * n_rows for place, _, _ in uses], device=self._device)
            into = resident.run_rows[runs][:, None] + places
            scores.view(-1).scatter_add_(0, into.view(-1), self._to_grid(parts).view(-1))
            for place, _, _ in uses:
                counts[place][0] += int(mentions.stop - mentions.start)
        sentences = {
            place: query.sentence_vectors
            for place, query in enumerate(queries)
            if query.sentence_vectors is not None
        }
        if sentences:
            places = torch.tensor(list(sentences), device=self._device)
            for number, (values, scales) in enumerate(resident.sentences):
                if values.shape[1]:
                    vectors = [pair[number] for pair in sentences.values()]
                    products = self._products(values, scales, vectors, self._sum_in_halves)
                    scores[places] += self._to_grid(products).T
            for place in sentences:
                counts[place][1] += n_rows
        return scores

    def _best_products(
        self, resident: _Resident, mentions: slice, runs: slice, vectors: Sequence[QueryVector]
    ) -> Tensor:
        """The largest product of each run with each vector, 0 if only counts matter. [runs, vectors]"""
        torch = self._torch
        best = torch.zeros((runs.stop - runs.start, len(vectors)), device=self._device)
        with_products = [number for number, vector in enumerate(vectors) if len(vector.exact)]
        if with_products:
            scales = None if resident.scales is None else resident.scales[mentions]
            some = [vectors[number] for number in with_products]
            products = self._products(resident.values[mentions], scales, some, self._sum_in_turn)
            run = (resident.run[mentions] - int(runs.start))[:, None].expand(-1, len(some))
            largest = torch.full((len(best), len(some)), -torch.inf, device=self._device)
            largest.scatter_reduce_(0, run, products, "amax")
            best[:, with_products] = largest
        return best

    def _factors(self, resident: _Resident, runs: slice, queries: Sequence[PreparedQuery]) -> Tensor:
        """The factor of term frequency and length of each run for each query. [runs, queries]"""
        torch = self._torch
        tf = resident.run_counts[runs][:, None]
        lengths = resident.row_lengths[resident.run_rows[runs]][:, None]
        columns = []
        for query in queries:
            if query.saturation is None:
                columns.append(torch.ones_like(tf))
                continue
            # As fp32 on the device: a Python number would be rounded only after the product.
            c0, c1 = (torch.tensor(c, dtype=torch.float32, device=self._device) for c in query.saturation)
            columns.append(tf / (tf + (c0 + c1 * lengths)))
        return torch.cat(columns, dim=1)

    def _products(
        self, values: Tensor, scales: Tensor | None, vectors: Sequence[QueryVector], add: Any
    ) -> Tensor:
        """The products [stored vectors, query vectors]."""
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
        self, resident: _Resident, scores: Tensor, queries: Sequence[PreparedQuery], selection: Selection
    ) -> list[Ranking]:
        """The k best documents for each query; the score of a document is that of its best row."""
        torch = self._torch
        n_documents = len(resident.documents)
        k = min(selection.k, n_documents)
        if resident.is_row_document:
            of_document = scores
        else:
            shape = (len(queries), n_documents)
            of_document = torch.full(shape, NOTHING, dtype=torch.int64, device=self._device)
            index = resident.document_of[None].expand(len(queries), -1)
            of_document.scatter_reduce_(1, index, scores, "amax")
        gone = self._gone(resident, selection)
        if gone is not None:
            of_document = of_document.masked_fill(gone[None], NOTHING)
        sparse = torch.tensor([query.sentence is None for query in queries], device=self._device)
        # Without a sentence part, a document that scores exactly 0 is not a hit.
        out = (sparse[:, None] & (of_document == 0)) | (of_document < selection.at_least)
        of_document = of_document.masked_fill(out, NOTHING)
        # topk picks arbitrary documents among those that tie at the k-th place: it only gives the k-th score.
        last = torch.topk(of_document, k, dim=1).values[:, -1:]
        kept = torch.nonzero((of_document >= last) & (of_document > NOTHING))  # by query, then by document
        values = of_document[kept[:, 0], kept[:, 1]].cpu().numpy()
        of_query, documents = kept.cpu().numpy().T
        cuts = np.searchsorted(of_query, np.arange(len(queries) + 1))
        chosen = []
        for begin, end in pairwise(cuts):
            chosen.append(begin + np.argsort(-values[begin:end], kind="stable")[:k])
        picked = np.concatenate(chosen)
        rows = self._best_rows(resident, scores, of_query[picked], documents[picked])
        segments = np.searchsorted(resident.starts, rows, side="right") - 1
        ranking = Ranking(
            values[picked],
            resident.documents[documents[picked]],
            segments.astype(np.int32),
            (rows - resident.starts[segments]).astype(np.int32),
        )
        ends = np.cumsum([0, *(len(of_one) for of_one in chosen)])
        return [ranking[begin:end] for begin, end in pairwise(ends)]

    def _gone(self, resident: _Resident, selection: Selection) -> Tensor | None:
        """Which documents must not be found; None if all may be."""
        masks = [mask_of(live, selection.allowed) for live in self._segments]
        if all(mask is None for mask in masks):
            return None
        alive = [
            np.ones(live.segment.n_rows, bool) if mask is None else mask.astype(bool)
            for live, mask in zip(self._segments, masks, strict=True)
        ]
        gone = np.ones(len(resident.documents), dtype=bool)
        gone[resident.document_of_row[np.concatenate(alive)]] = False
        return self._torch.from_numpy(gone).to(self._device)

    def _best_rows(
        self, resident: _Resident, scores: Tensor, queries: NDArray[np.int64], documents: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The row that gave each of these documents its score for each of these queries."""
        rows: NDArray[np.int64] = resident.first_rows[documents]
        counts = resident.row_counts[documents]
        if not len(rows) or counts.max() == 1:
            return rows
        begins = np.cumsum(counts) - counts
        every = np.repeat(rows - begins, counts) + np.arange(counts.sum())
        place = np.repeat(queries, counts)
        flat = self._torch.from_numpy(place * resident.n_rows + every).to(self._device)
        found = scores.view(-1)[flat].cpu().numpy()
        highest = np.repeat(np.maximum.reduceat(found, begins), counts)
        at = np.where(found == highest, np.arange(len(found)), len(found))
        return every[np.minimum.reduceat(at, begins)]
