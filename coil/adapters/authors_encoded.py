"""Reads texts encoded by the authors' code (luyug/COIL) as TokenVectors.

Each folder (a "split") contains the sentence vectors of its texts (`cls_reps.npy`, `cls_pids.npy`) and their
mentions, grouped by token (`tok_reps.npy`, `tok_pids.npy`); `offsets.pkl` maps each token to its first
mention and the number of mentions. Texts are identified by whole numbers. Positions are not stored, but the
n-th mention of a token in a text is its n-th occurrence there.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.errors import DuplicateId, InputError, OptionMismatch
from coil.tokens.list_keys import shorten
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

FILES = ("cls_pids.npy", "cls_reps.npy", "tok_pids.npy", "tok_reps.npy", "offsets.pkl")
_KEPT = 2  # splits that are kept open
_LARGEST_OFFSETS = 64 << 20  # bytes; a vocabulary of a million tokens takes 20 MB
_AGAIN = "encode the texts again, or copy the complete folder"
_NUMBERS = frozenset(("BININT", "BININT1", "BININT2", "LONG1", "INT", "LONG"))
_NEUTRAL = frozenset(("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"))


@dataclass(frozen=True, eq=False)
class EncodedText:
    """One text as stored in the files."""

    tokens: NDArray[np.int64]  # [mentions] token ids, ascending; those of one token in the order of the text
    vectors: NDArray[np.float32]  # [mentions, n_t]
    sentence: NDArray[np.float32]  # [n_c]


class EncodedTexts:
    """The texts of one or more folders, by number."""

    def __init__(self, folders: Iterable[str | Path]) -> None:
        """Each folder is a split or contains splits."""
        self.splits = [split for folder in folders for split in _splits_of(Path(folder))]
        if not self.splits:
            raise InputError("there are no encoded texts", "pass a folder with tok_reps.npy and cls_reps.npy")
        ids = [_load(split / "cls_pids.npy", 1) for split in self.splits]
        numbers = np.concatenate(ids).astype(np.int64)
        self._order = np.argsort(numbers, kind="stable")
        self.numbers = numbers[self._order]  # ascending
        self._starts = np.cumsum([0, *map(len, ids)])
        self._check_unique()
        widths = {
            (_load(split / "tok_reps.npy", 2).shape[1], _load(split / "cls_reps.npy", 2).shape[1])
            for split in self.splits
        }
        if len(widths) > 1:
            raise InputError(
                f"the splits have vectors of different widths: {sorted(widths)}", "pass splits of one model"
            )
        [(self.n_t, self.n_c)] = widths
        self._open: dict[int, _Split] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self._find(number) is not None

    def text(self, number: int) -> EncodedText:
        """A text by its number; reading texts of the same split in succession is fast."""
        place = self._find(number)
        if place is None:
            raise InputError(f"no text has the number {number}", "use a number from cls_pids.npy")
        split = int(np.searchsorted(self._starts, place, side="right")) - 1
        if split not in self._open:
            if len(self._open) >= _KEPT:
                del self._open[next(iter(self._open))]
            self._open[split] = _Split(self.splits[split])
        return self._open[split].text(place - int(self._starts[split]))

    def _find(self, number: int) -> int | None:
        at = int(np.searchsorted(self.numbers, number))
        found = at < len(self.numbers) and self.numbers[at] == number
        return int(self._order[at]) if found else None

    def _check_unique(self) -> None:
        twice = np.flatnonzero(self.numbers[1:] == self.numbers[:-1])
        if len(twice):
            first, second = (
                str(self.splits[int(np.searchsorted(self._starts, self._order[at], side="right")) - 1])
                for at in (twice[0], twice[0] + 1)
            )
            raise DuplicateId(str(self.numbers[twice[0]]), first, second)


class EncodedReader:
    """Encoded texts as the output of an encoder, which must have the paper's profile and the same widths."""

    def __init__(self, texts: EncodedTexts, encoder: Encoder) -> None:
        self._texts, self._encoder = texts, encoder
        config = encoder.config
        if config.profile.list_key != "wordpiece" or config.profile.unlisted != "nothing":
            raise OptionMismatch(
                "the model does not have the paper's scoring profile",
                "pass the model that encoded the texts, converted with `coil import-checkpoint`",
            )
        for name, width, found in (("n_t", config.n_t, texts.n_t), ("n_c", config.n_c, texts.n_c)):
            if width not in (0, found):  # 0: the files also contain the untrained part
                raise OptionMismatch(
                    f"the model's {name} is {width}, but the encoded vectors are {found} wide",
                    "pass the model that encoded the texts",
                )
        self._names = [shorten(name) for name in encoder.tokenizer.vocabulary]
        self._special = frozenset(encoder.tokenizer.special_ids)

    def vectors(self, number: int) -> TokenVectors:
        """The vectors without positions, which is enough for scoring and for queries."""
        found = self._checked(number)
        n = len(found.tokens)
        return TokenVectors(
            keys=tuple(self._names[token] for token in found.tokens.tolist()),
            positions=np.arange(n, dtype=np.int32),
            spans=np.zeros((n, 2), dtype=np.int32),
            vectors=found.vectors if self._encoder.config.n_t else np.zeros((n, 0), np.float32),
            sentence=found.sentence if self._encoder.config.n_c else None,
        )

    def placed(self, number: int, text: str) -> TokenVectors | None:
        """The vectors with their positions in the text; None if the tokens of the text differ."""
        plain, found = self.vectors(number), self._checked(number)
        [cut] = self._encoder.tokenizer.cut([text], self._encoder.config.profile.document_length)
        ids = cut.input_ids[cut.first : cut.first + len(cut.spans)]
        order = np.argsort(ids, kind="stable")
        if not np.array_equal(ids[order], found.tokens):
            return None
        place = np.empty(len(order), dtype=np.intp)
        place[order] = np.arange(len(order))
        return TokenVectors(
            keys=tuple(plain.keys[at] for at in place.tolist()),
            positions=(np.arange(len(ids)) + cut.first).astype(np.int32),
            spans=cut.spans,
            vectors=plain.vectors[place],
            sentence=plain.sentence,
            dropped=cut.dropped,
        )

    def _checked(self, number: int) -> EncodedText:
        found = self._texts.text(number)
        if len(found.tokens) and not 0 <= found.tokens[0] <= found.tokens[-1] < len(self._names):
            raise InputError(
                f"text {number} has the token id {int(found.tokens[-1])}, which is not in the vocabulary",
                "pass the model that encoded the texts",
            )
        special = self._special.intersection(found.tokens.tolist())
        if special:
            raise InputError(
                f"text {number} was encoded with {self._names[min(special)]}, which is never matched",
                "encode the texts with --no_sep",
            )
        return found


class _Split:
    """One folder, with its mentions sorted by text. Vectors stay on disk."""

    def __init__(self, folder: Path) -> None:
        numbers = _load(folder / "cls_pids.npy", 1).astype(np.int64)
        self._sentences = _load(folder / "cls_reps.npy", 2)
        self._vectors = _load(folder / "tok_reps.npy", 2)
        owners = _load(folder / "tok_pids.npy", 1).astype(np.int64)
        if len(self._sentences) != len(numbers) or len(self._vectors) != len(owners):
            raise InputError(
                f"{folder}: {len(numbers):,} texts and {len(self._sentences):,} sentence vectors, "
                f"{len(owners):,} mentions and {len(self._vectors):,} token vectors; the counts must match",
                _AGAIN,
            )
        tokens = _tokens_of(folder / "offsets.pkl", len(owners))
        by_number = np.argsort(numbers)
        at = np.searchsorted(numbers[by_number], owners)
        rows = by_number[np.minimum(at, len(by_number) - 1)] if len(numbers) else at
        if len(owners) and (not len(numbers) or not np.array_equal(numbers[rows], owners)):
            raise InputError(f"{folder}: tok_pids.npy contains numbers that are not in cls_pids.npy", _AGAIN)
        # By text, then by token; stable: the mentions of a token stay in the order of the text.
        self._order = np.lexsort((tokens, rows))
        self._tokens = tokens[self._order]
        self._begins = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(numbers)))])
        self._folder = folder

    def text(self, place: int) -> EncodedText:
        part = slice(int(self._begins[place]), int(self._begins[place + 1]))
        vectors = np.asarray(self._vectors[self._order[part]], dtype=np.float32)
        sentence = np.asarray(self._sentences[place], dtype=np.float32)
        if not (np.isfinite(vectors).all() and np.isfinite(sentence).all()):
            raise InputError(
                f"{self._folder}: text {place + 1} has NaN or infinite values",
                "encode it again without --fp16",
            )
        return EncodedText(self._tokens[part], vectors, sentence)


def number_of(doc_id: str) -> int | None:
    """The number that the authors' code uses for a document: 7067032, or D1555982 without the D."""
    found = re.fullmatch(r"D?([0-9]{1,18})", doc_id)
    return int(found[1]) if found else None


def _splits_of(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "pass a folder with tok_reps.npy and cls_reps.npy")
    if (folder / FILES[0]).is_file():
        missing = [name for name in FILES if not (folder / name).is_file()]
        if missing:
            raise InputError(f"{folder} has no {missing[0]}", _AGAIN)
        return [folder]
    inside = [path for path in folder.iterdir() if (path / FILES[0]).is_file()]
    if not inside:
        raise InputError(
            f"{folder} contains no encoded texts: neither {FILES[0]} nor folders with it",
            "pass the output of the authors' `run_marco.py --do_encode`",
        )
    named = sorted(inside, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)] or [-1])
    return [split for path in named for split in _splits_of(path)]


def _load(path: Path, dimensions: int) -> NDArray[Any]:
    """A memory-mapped array of numbers; pickled objects are refused."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not an array of numbers: {str(error)[:200]}", _AGAIN) from error
    wanted = np.integer if dimensions == 1 else np.floating
    if (
        not isinstance(array, np.ndarray)
        or array.ndim != dimensions
        or not np.issubdtype(array.dtype, wanted)
    ):
        found = (
            f"{array.dtype} of shape {list(array.shape)}" if isinstance(array, np.ndarray) else "an archive"
        )
        kind = "whole numbers" if dimensions == 1 else "decimal numbers"
        raise InputError(f"{path} is {found}; expected {kind} in {dimensions} dimension(s)", _AGAIN)
    return array


def _tokens_of(path: Path, mentions: int) -> NDArray[np.int64]:
    """The token of each mention."""
    offsets = read_offsets(path)
    tokens = np.full(mentions, -1, dtype=np.int64)
    covered = 0
    for token, (begin, count) in offsets.items():
        if token < 0 or begin < 0 or count < 0 or begin + count > mentions:
            raise InputError(
                f"{path}: token {token} has mentions {begin} to {begin + count}, but there are {mentions:,}",
                _AGAIN,
            )
        tokens[begin : begin + count] = token
        covered += count
    if covered != mentions or (tokens < 0).any():
        raise InputError(f"{path} covers {covered:,} mentions, but there are {mentions:,}", _AGAIN)
    return tokens


def read_offsets(path: Path) -> dict[int, tuple[int, int]]:
    """Read a pickled dictionary of token → (begin, count) without unpickling it.

    A pickle is a program. Its opcodes are parsed here, and every opcode that does more than build a
    dictionary of whole numbers and pairs is refused.
    """
    size = path.stat().st_size
    if size > _LARGEST_OFFSETS:
        raise InputError(
            f"{path} has {size:,} bytes, which exceeds the limit of {_LARGEST_OFFSETS:,}", _AGAIN
        )
    stack: list[Any] = []
    marks: list[int] = []
    try:
        for step, argument, _ in pickletools.genops(path.read_bytes()):
            if step.name in _NUMBERS and argument is not None:
                stack.append(int(argument))
            elif step.name == "EMPTY_DICT":
                stack.append({})
            elif step.name == "MARK":
                marks.append(len(stack))
            elif step.name == "TUPLE2":
                stack[-2:] = [(stack[-2], stack[-1])]
            elif step.name == "TUPLE":
                begin = marks.pop()
                stack[begin:] = [tuple(stack[begin:])]
            elif step.name in ("SETITEM", "SETITEMS"):
                begin = marks.pop() if step.name == "SETITEMS" else len(stack) - 2
                stack[begin - 1].update(zip(stack[begin::2], stack[begin + 1 :: 2], strict=True))
                del stack[begin:]
            elif step.name not in (*_NEUTRAL, "STOP"):
                raise InputError(
                    f"{path} contains more than whole numbers ({step.name}), which could execute code", _AGAIN
                )
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise InputError(f"{path} is not a pickled dictionary: {str(error)[:200]}", _AGAIN) from error
    offsets = stack[0] if len(stack) == 1 else None
    if not isinstance(offsets, dict) or not all(_is_entry(key, value) for key, value in offsets.items()):
        raise InputError(f"{path} does not contain a dictionary of token → (begin, count)", _AGAIN)
    return offsets


def _is_entry(token: object, span: object) -> bool:
    return isinstance(token, int) and isinstance(span, tuple) and list(map(type, span)) == [int, int]
