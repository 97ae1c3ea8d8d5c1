"""List keys: which tokens share a list, and which have none."""

from __future__ import annotations

import pytest

from coil.tokens.list_keys import NO_LIST, build_list_keys
from coil.tokens.profile import PAPER, ScoringProfile

WORD_PIECES = [
    "[PAD]",
    "[UNK]",
    "bank",
    "banks",
    "##s",
    "the",
    ".",
    "##.",
    "banking",
    "##ing",
    "run",
    "running",
    "1",
]
BYTE_PAIRS = ["<s>", "<unk>", "Ġbank", "Ġbanks", "s", "Ġthe", "the", "able", "Ġable", "in", "Ġin", "."]


def lists(vocabulary: list[str], profile: ScoringProfile) -> dict[str, str | None]:
    table = build_list_keys(profile, vocabulary, [0], 1).table.tolist()
    return {
        token: None if key == NO_LIST else vocabulary[key]
        for token, key in zip(vocabulary, table, strict=True)
    }


def test_in_the_papers_profile_every_token_has_its_own_list() -> None:
    found = lists(WORD_PIECES, PAPER)
    assert found.pop("[PAD]") is None
    assert all(key == token for token, key in found.items())


def test_whole_words_of_one_stem_share_a_list() -> None:
    found = lists(WORD_PIECES, ScoringProfile(list_key="stem"))
    assert found["banks"] == found["banking"] == found["bank"] == "bank"
    assert found["running"] == "run"
    assert (found["##s"], found["##ing"], found["1"], found["the"]) == ("##s", "##ing", "1", "the")


def test_stop_words_punctuation_and_the_unknown_have_none() -> None:
    found = lists(WORD_PIECES, ScoringProfile(list_key="stem", unlisted="stopwords"))
    assert [token for token, key in found.items() if key is None] == ["[PAD]", "[UNK]", "the", ".", "##."]


@pytest.mark.parametrize("token", ["s", "the", "able", "in"])
def test_pieces_of_a_byte_pair_vocabulary_are_no_words(token: str) -> None:
    found = lists(BYTE_PAIRS, ScoringProfile(list_key="stem", unlisted="stopwords"))
    assert found[token] == token
    assert (found["Ġthe"], found["Ġin"]) == (None, None)
    assert found["Ġbanks"] == "Ġbank"
