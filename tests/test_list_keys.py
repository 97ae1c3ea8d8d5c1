"""List keys: which tokens share a list, and which have none."""

from __future__ import annotations

import pytest

from coil.tokens.list_keys import NO_LIST, build_list_keys
from coil.tokens.profile import PAPER, ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from tests.tiny import make_tokenizer, random_texts

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


def test_long_texts_are_cut_in_pieces_without_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer takes some 170 bytes a token, so a text of megabytes is never cut all at once."""
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    texts = [" ".join(random_texts(40, seed=seed)) for seed in range(3)] + ["", "river\n\n bank " * 50]
    whole = tokenizer.cut(texts, 300) + tokenizer.cut(texts, 10**6)
    monkeypatch.setattr("coil.tokens.tokenizer.PIECE", 100)
    pieces = tokenizer.cut(texts, 300) + tokenizer.cut(texts, 10**6)
    for one, other in zip(whole, pieces, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.spans.tolist() == other.spans.tolist()
        assert one.dropped == other.dropped
