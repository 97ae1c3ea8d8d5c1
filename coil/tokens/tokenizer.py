"""Text → tokens with character spans, using only the `tokenizers` library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as RustTokenizer

from coil.compiled import compiled_code
from coil.errors import TokenizerMismatch, out_of_threads
from coil.interruptions import let_through
from coil.texts.values import clean
from coil.tokens.model_json import LARGEST, check_file

PIECE = 100_000  # characters tokenized at a time: the tokenizer takes some hundred bytes per token
GoOn = Callable[[], object]
"""Called between the parts of long work; it stops the work by raising an exception."""
_SPACE = re.compile(r"\s")
_UNUSED = 1000  # the vocabulary may have this many unused ids, plus as many as it has tokens
_REMEDY = "restore the tokenizer that the model was trained with"
# Normalizers that change nothing but the case of printable ASCII. `Strip` also removes spaces at the ends.
_KEEP_ASCII = frozenset("BertNormalizer NFC NFD NFKC NFKD Lowercase Strip StripAccents".split())


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text as the language model reads them, with special tokens at both ends."""

    input_ids: NDArray[np.int32]  # [length] with special tokens
    spans: NDArray[np.int32]  # [length - prefix - suffix, 2] characters of each real token
    word_numbers: NDArray[np.int32]  # [length - prefix - suffix] the word that each real token belongs to
    last_end: int  # where the word of the last real token ends, even if it did not fit completely
    first: int  # position of the first real token in input_ids
    dropped: int  # how many real tokens did not fit

    def __len__(self) -> int:
        return len(self.input_ids)

    def words(self) -> tuple[NDArray[np.intp], NDArray[np.int32]]:
        """The position of each word's first token among the real tokens, and the word's character span."""
        places = np.flatnonzero(np.diff(self.word_numbers, prepend=-1))
        spans = np.empty((len(places), 2), dtype=np.int32)
        if len(places):
            spans[:, 0] = self.spans[places, 0]
            spans[:-1, 1] = self.spans[places[1:] - 1, 1]
            spans[-1, 1] = self.last_end
        return places, spans


class Tokenizer:
    """Splits texts into tokens and adds the special tokens that the language model expects."""

    def __init__(self, rust: RustTokenizer, where: str) -> None:
        self._rust = rust
        self.where = where
        with self._named():
            rust.no_padding()
            rust.no_truncation()
            rust.encode_special_tokens = True  # "[SEP]" in a text is plain text
            bare = rust.encode("a", add_special_tokens=False).ids
            full = rust.encode("a").ids
            largest = max(rust.get_vocab(with_added_tokens=True).values(), default=-1)
            size = rust.get_vocab_size(with_added_tokens=True)
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), -1)
        if not bare or start < 0:
            raise TokenizerMismatch(f"{where}: the tokenizer has no token for the letter 'a'", _REMEDY)
        if largest >= 2 * size + _UNUSED:
            raise TokenizerMismatch(
                f"{where}: the vocabulary has {size:,} tokens, but one has the id {largest:,}", _REMEDY
            )
        if max(full) > largest:
            raise TokenizerMismatch(
                f"{where}: a special token has the id {max(full):,}, which is not in the vocabulary",
                _REMEDY,
            )
        self.prefix: tuple[int, ...] = tuple(full[:start])
        self.suffix: tuple[int, ...] = tuple(full[start + len(bare) :])
        if not self.prefix:
            raise TokenizerMismatch(
                f"{where}: the tokenizer adds no [CLS]-like token before a text",
                "use the tokenizer of an encoder model (BERT, RoBERTa, MPNet, DistilBERT)",
            )

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Read a tokenizer.json."""
        check_file(path, "copy the tokenizer.json of the base model there", LARGEST)
        with _named(str(path)):
            rust = RustTokenizer.from_file(str(path))
        return cls(rust, str(path))

    def _named(self) -> AbstractContextManager[None]:
        return _named(self.where)

    @property
    def vocabulary(self) -> list[str]:
        """The tokens by id; unused ids have an empty string."""
        by_id = {token_id: token for token, token_id in self._rust.get_vocab(with_added_tokens=True).items()}
        return [by_id.get(i, "") for i in range(max(by_id) + 1)]

    @property
    def special_ids(self) -> list[int]:
        """The ids that never represent text; the unknown token is not one of them."""
        unknown = self.unknown_id
        added = self._rust.get_added_tokens_decoder()
        return sorted(i for i, token in added.items() if token.special and i != unknown)

    @property
    def unknown_id(self) -> int | None:
        """The id of the unknown token, if the tokenizer has one."""
        return self._find("[UNK]", "<unk>")

    @property
    def mask_id(self) -> int | None:
        """The id of the mask token, if the tokenizer has one."""
        return self._find("[MASK]", "<mask>")

    def _find(self, *names: str) -> int | None:
        found = (self._rust.token_to_id(name) for name in names)
        return next((int(token_id) for token_id in found if token_id is not None), None)

    def token(self, token_id: int) -> str:
        """The token with this id, as written in the vocabulary."""
        return self._rust.id_to_token(token_id) or ""

    def cut(self, texts: Sequence[str], length: int, go_on: GoOn | None = None) -> list[Tokens]:
        """Tokenize texts, keeping at most `length` ids of each, special tokens included.

        `go_on` is called between the pieces of a very long text.
        """
        room = max(0, length - len(self.prefix) - len(self.suffix))
        tokens = []
        # A token takes about 170 bytes in the tokenizer, so very long texts are tokenized in pieces.
        pieces = [_pieces(clean(text)) for text in texts]
        with self._named():
            first = self._rust.encode_batch([piece[0] for piece in pieces], add_special_tokens=False)
        for encoding, of_text in zip(first, pieces, strict=True):
            cut = _Cut(room)
            cut.add(encoding, 0)
            begin = 0
            for before, piece in pairwise(of_text):
                begin += len(before)
                if go_on is not None:
                    go_on()
                with self._named():
                    cut.add(self._rust.encode(piece, add_special_tokens=False), begin)
            tokens.append(cut.tokens(self.prefix, self.suffix))
        return tokens

    def normalise(self, text: str) -> str:
        """Normalize a text like the language model (case, accents)."""
        normalizer = self._rust.normalizer
        with self._named():
            return text if normalizer is None else str(normalizer.normalize_str(clean(text)))

    @cached_property
    def keeps_ascii(self) -> bool:
        """Whether `normalise` provably keeps the words of printable ASCII texts, except for their case."""
        normalizer = self._rust.normalizer
        if normalizer is None:
            return True
        try:
            with compiled_code():
                described = json.loads(normalizer.__getstate__())
        except Exception as error:  # it is written in Python
            let_through(error)
            return False
        parts = described.get("normalizers", [described])  # the library flattens nested sequences
        return all(part.get("type") in _KEEP_ASCII for part in parts)

    def save(self, path: Path) -> None:
        """Write a tokenizer.json."""
        self._rust.save(str(path))


class _Cut:
    """Collects the tokens of a text, of which the first `room` are kept."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._ids: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self._words: list[int] = []
        self._count = self._word_count = self._last_end = 0

    def add(self, encoding: Any, begin: int) -> None:
        """Add the tokens of the piece of the text that begins at this character."""
        left = self._room - len(self._ids)
        self._count += len(encoding.ids)
        if left <= 0 or not encoding.ids:
            return
        offsets, numbers = encoding.offsets, encoding.word_ids
        kept = min(left, len(numbers))
        self._ids += encoding.ids[:left]
        self._spans += [(a + begin, b + begin) for a, b in offsets[:left]]
        self._words += [number + self._word_count for number in numbers[:left]]
        self._word_count += numbers[-1] + 1
        last = kept - 1
        while last + 1 < len(numbers) and numbers[last + 1] == numbers[kept - 1]:
            last += 1
        self._last_end = offsets[last][1] + begin

    def tokens(self, prefix: tuple[int, ...], suffix: tuple[int, ...]) -> Tokens:
        """The kept tokens, between the special tokens."""
        return Tokens(
            input_ids=np.array([*prefix, *self._ids, *suffix], dtype=np.int32),
            spans=np.array(self._spans, dtype=np.int32).reshape(-1, 2),
            word_numbers=np.array(self._words, dtype=np.int32),
            last_end=self._last_end,
            first=len(prefix),
            dropped=max(0, self._count - self._room),
        )


def _pieces(text: str) -> list[str]:
    """Split a very long text before white space, so that the pieces have the same tokens as the text."""
    pieces, begin = [], 0
    while len(text) - begin > PIECE:
        space = _SPACE.search(text, begin + PIECE, begin + 2 * PIECE)
        end = space.start() if space else begin + PIECE
        pieces.append(text[begin:end])
        begin = end
    return [*pieces, text[begin:]]


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Turn Exceptions and panics (not Exceptions) of the Rust library into TokenizerMismatch."""
    with compiled_code():
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            let_through(error)
            if "ThreadPoolBuildError" in str(error):
                raise out_of_threads("the tokenizer needs one for each core") from error
            raise TokenizerMismatch(
                f"{where} is not a usable tokenizer: {str(error)[:200]}", _REMEDY
            ) from error
