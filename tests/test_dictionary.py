"""The dictionary of a segment: finds every key and no other, and no bytes can lead it astray."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import DamagedSegment
from coil.lists.dictionary import BLOCK_KEYS, Dictionary
from coil.tokens.list_keys import LONGEST_KEY, shorten

KEYS = st.sets(st.text(max_size=12).map(shorten) | st.text(alphabet="ab", max_size=8), max_size=80)


def by_bytes(keys: set[str]) -> list[str]:
    return sorted(keys, key=lambda key: key.encode())


@given(keys=KEYS.filter(lambda keys: all(c < "\ud800" or c > "\udfff" for key in keys for c in key)))
@settings(deadline=None)
def test_every_key_is_found_at_its_place_and_no_other(keys: set[str]) -> None:
    names = by_bytes(keys)
    dictionary = Dictionary.of(names)
    assert list(dictionary) == names
    assert [dictionary.find(key) for key in names] == list(range(len(names)))
    assert [dictionary.key(place) for place in range(len(names))] == names
    for key in keys:
        for other in (key + "a", key[:-1], "b" + key):
            if other not in keys and len(other.encode()) <= LONGEST_KEY:
                assert dictionary.find(other) == -1


def test_front_coding_saves_bytes() -> None:
    names = [f"international{i:04d}" for i in range(1000)]
    dictionary = Dictionary.of(names)
    assert len(dictionary.keys) < 0.4 * sum(map(len, names))
    assert len(dictionary.key_blocks) == -(-1000 // BLOCK_KEYS) + 1


def test_an_empty_dictionary_finds_nothing() -> None:
    assert Dictionary.of([]).find("a") == -1
    assert list(Dictionary.of([])) == []


@given(data=st.data(), keys=KEYS.filter(lambda keys: len(keys) > 2))
@settings(max_examples=300, deadline=None)
def test_damaged_bytes_are_an_error_or_another_answer_never_more(data: st.DataObject, keys: set[str]) -> None:
    try:
        dictionary = Dictionary.of(by_bytes(keys))
    except UnicodeEncodeError:
        return
    coded, blocks = bytearray(dictionary.keys.tobytes()), dictionary.key_blocks.copy()
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            coded[data.draw(st.integers(0, len(coded) - 1))] = data.draw(st.integers(0, 255))
        else:
            blocks[data.draw(st.integers(0, len(blocks) - 1))] = data.draw(st.integers(0, 2**32 - 1))
    damaged = Dictionary(np.frombuffer(bytes(coded), np.uint8), blocks, len(dictionary))
    for key in [*keys, "nowhere"]:
        with suppress(DamagedSegment):
            assert -1 <= damaged.find(key) < len(dictionary) + BLOCK_KEYS
    with suppress(DamagedSegment):
        list(damaged)


def test_a_long_word_is_known_by_its_beginning_and_a_digest() -> None:
    word = "ä" * 10_000
    key = shorten(word)
    assert len(key.encode()) <= LONGEST_KEY
    assert key.startswith("ä" * 20)
    assert shorten(word + "b") != key
    assert shorten("short") == "short"


def test_a_key_that_is_too_long_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        Dictionary.of(["a" * (LONGEST_KEY + 1)])
