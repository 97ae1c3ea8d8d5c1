"""Text → tokens with character spans, through the `tokenizers` library alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as RustTokenizer

from coil.errors import MissingModelFile, TokenizerMismatch
from coil.texts.values import clean


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text: what the language model reads, special tokens included at both ends."""

    input_ids: NDArray[np.int32]  # [length] with special tokens
    spans: NDArray[np.int32]  # [length - prefix - suffix, 2] characters of each real token
    dropped: int  # how many real tokens did not fit

    def __len__(self) -> int:
        return len(self.input_ids)


class Tokenizer:
    """Cuts texts into tokens and adds the special tokens that the language model expects."""

    def __init__(self, rust: RustTokenizer, where: str) -> None:
        rust.no_padding()
        rust.no_truncation()
        rust.encode_special_tokens = True  # "[SEP]" written in a text is text
        self._rust = rust
        self.where = where
        bare = rust.encode("a", add_special_tokens=False).ids
        full = rust.encode("a").ids
        start = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), -1)
        if not bare or start < 0:
            raise TokenizerMismatch(f"{where}: the tokenizer has no token for the letter 'a'")
        self.prefix: tuple[int, ...] = tuple(full[:start])
        self.suffix: tuple[int, ...] = tuple(full[start + len(bare) :])
        if not self.prefix:
            raise TokenizerMismatch(
                f"{where}: the tokenizer puts no [CLS]-like token before a text",
                "use the tokenizer of an encoder model (BERT, RoBERTa, MPNet, DistilBERT)",
            )

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Read a tokenizer.json."""
        if not path.is_file():
            raise MissingModelFile(f"{path} is missing", "copy the tokenizer.json of the base model there")
        try:
            rust = RustTokenizer.from_file(str(path))
        except Exception as error:  # the Rust side raises plain Exception
            raise TokenizerMismatch(f"{path} cannot be read as a tokenizer: {error}") from error
        return cls(rust, str(path))

    @property
    def vocabulary_size(self) -> int:
        """How many token ids there are."""
        return self._rust.get_vocab_size(with_added_tokens=True)

    @property
    def vocabulary(self) -> list[str]:
        """The tokens by id; ids that are not used get an empty string."""
        by_id = {token_id: token for token, token_id in self._rust.get_vocab(with_added_tokens=True).items()}
        return [by_id.get(i, "") for i in range(max(by_id) + 1)]

    @property
    def special_ids(self) -> list[int]:
        """Ids that never stand for a piece of text; the unknown token is not among them."""
        unknown = self.unknown_id
        added = self._rust.get_added_tokens_decoder()
        return sorted(i for i, token in added.items() if token.special and i != unknown)

    @property
    def unknown_id(self) -> int | None:
        """The id for what the vocabulary cannot spell, if the tokenizer has one."""
        for name in ("[UNK]", "<unk>"):
            found = self._rust.token_to_id(name)
            if found is not None:
                return int(found)
        return None

    def token(self, token_id: int) -> str:
        """The token with this id, as it stands in the vocabulary."""
        return self._rust.id_to_token(token_id) or ""

    def cut(self, texts: Sequence[str], length: int) -> list[Tokens]:
        """Tokenize texts, keeping at most `length` ids of each, special tokens included."""
        room = max(0, length - len(self.prefix) - len(self.suffix))
        tokens = []
        for encoding in self._rust.encode_batch([clean(t) for t in texts], add_special_tokens=False):
            ids = encoding.ids[:room]
            input_ids = np.array([*self.prefix, *ids, *self.suffix], dtype=np.int32)
            spans = np.array(encoding.offsets[:room], dtype=np.int32).reshape(-1, 2)
            tokens.append(Tokens(input_ids, spans, max(0, len(encoding.ids) - room)))
        return tokens

    def save(self, path: Path) -> None:
        """Write a tokenizer.json."""
        self._rust.save(str(path))
