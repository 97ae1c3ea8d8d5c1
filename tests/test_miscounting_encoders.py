"""An encoder that returns fewer or more results than texts loses or mixes up nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import pytest

from coil.errors import ModelError
from coil.indexes.opening import create
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder


class Miscounting(HashEncoder):
    """Returns so many results too many; a negative number: too few."""

    def __init__(self, surplus: int) -> None:
        super().__init__()
        self._surplus = surplus

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        found = list(super().encode_documents(texts))
        return islice(chain(found, found), len(found) + self._surplus)


@pytest.mark.parametrize(("surplus", "told"), [(-1, "fewer"), (1, "more"), (-3, "fewer")])
@pytest.mark.parametrize("documents", [3, 15, 300])
def test_a_wrong_number_of_results_is_an_error(
    tmp_path: Path, surplus: int, told: str, documents: int
) -> None:
    index = create(tmp_path / "a.coil", encoder=Miscounting(surplus))
    with pytest.raises(ModelError, match=f"the encoder returned {told} results than it was given texts"):
        index.add({"id": f"d{n}", "text": "river bank"} for n in range(documents))
    assert len(index) in (0, documents)  # results that are too many come after all of the right ones


def test_a_right_number_is_none(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=Miscounting(0))
    assert index.add({"id": f"d{n}", "text": "river bank"} for n in range(15)) == 15
