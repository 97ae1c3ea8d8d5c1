"""List keys: which tokens share a list, and which have none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors

from coil.tokens.list_keys import LONGEST_KEY, STOP_WORDS, ListKeys, shorten, without_symbols
from coil.tokens.profile import PAPER, WORDS, ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from tests.tiny import make_tokenizer, random_texts

PIECES = replace(PAPER, unlisted="stopwords")
ALL_WORDS = replace(WORDS, unlisted="nothing")


def keys_of(text: str, profile: ScoringProfile, length: int = 64) -> tuple[str | None, ...]:
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    [keyed] = ListKeys(profile, tokenizer).of_texts([text], length)
    assert len(keyed.keys) == len(keyed.places) == len(keyed.spans)
    return keyed.keys


# By wordpiece


def test_in_the_papers_profile_every_token_has_its_own_list() -> None:
    expected = ("the", "bank", "##s", "[UNK]", "runs", "running", ".")
    assert keys_of("the banks \u6771 runs running.", PAPER) == expected


def test_stop_words_punctuation_and_the_unknown_have_none_by_wordpiece() -> None:
    assert keys_of("the banks \u6771 runs.", PIECES) == (None, "bank", "##s", None, "runs", None)


def test_special_tokens_have_none() -> None:
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    names = ListKeys(PAPER, tokenizer)._token_keys()
    assert [tokenizer.token(i) for i, name in enumerate(names) if name is None] == [
        "[PAD]", "[CLS]", "[SEP]", "[MASK]",
    ]  # fmt: skip


def byte_pairs() -> Tokenizer:
    """A byte-pair vocabulary, in which the start of a word is marked, not its continuation."""
    vocabulary = {
        token: i for i, token in enumerate(["<s>", "<unk>", "Ġbank", "Ġthe", "a", "s", "in", "Ġin"])
    }
    rust = RustTokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    rust.add_special_tokens(["<s>", "<unk>"])
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    rust.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return Tokenizer(rust, "byte pairs")


def test_pieces_of_a_byte_pair_vocabulary_are_stop_words_only_with_their_mark() -> None:
    tokenizer = byte_pairs()
    names = dict(zip(tokenizer.vocabulary, ListKeys(PIECES, tokenizer)._token_keys(), strict=True))
    assert (names["Ġthe"], names["Ġin"], names["Ġbank"]) == (None, None, "Ġbank")
    assert names["<s>"] is names["<unk>"] is None


# By word


def test_forms_of_a_word_share_a_list() -> None:
    assert keys_of("Banks, banking BANK banked", ALL_WORDS) == ("bank", ",", "bank", "bank", "bank")
    assert keys_of("runs running run", WORDS) == ("run", "run", "run")


def test_a_word_that_nobody_trained_on_has_a_list_of_its_own() -> None:
    """Spelt in pieces or not in the vocabulary at all, it is one mention, and matches only itself."""
    assert keys_of("kubernetes libxml2 E0277", WORDS) == ("kubernet", "libxml2", "e0277")
    assert keys_of("\u6771\u4eac", WORDS) == ("\u6771", "\u4eac")  # the pre-tokenizer parts these


def test_stop_words_and_punctuation_have_none_by_word() -> None:
    assert keys_of("the bank, of money!", WORDS) == (None, "bank", None, None, "money", None)
    assert all(key is None for key in keys_of(" ".join(sorted(STOP_WORDS)), WORDS, 10**4))
    assert keys_of("the bank", ALL_WORDS) == ("the", "bank")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("Acme\u2122 banks\U0001f600", ("acm", "bank")),
        ("\u20ac5 \u21165 5\u00b0", ("5", "5", "5")),
        ("banks\U0001f44d\U0001f3fd \u2764\ufe0fbanks", ("bank", "bank")),
        ("the\u2122", (None,)),
        ("\U0001f600 \u20ac \u2122", ("\U0001f600", "\u20ac", "\u2122")),  # on its own, a symbol has a list
        ("20\u00b0c", ("20\u00b0c",)),
    ],
)
def test_symbols_attached_to_a_word_do_not_count(text: str, keys: tuple[str | None, ...]) -> None:
    assert keys_of(text, WORDS) == keys


def test_symbols_of_ascii_are_left_to_the_pre_tokenizer() -> None:
    assert without_symbols("\U0001f468\u200d\U0001f469") == "\U0001f468\u200d\U0001f469"
    assert [without_symbols(word) for word in ("c++", "c++\u2122", "~x", "$5", "caf\u00e9", "")] == [
        *("c++", "c++", "~x", "$5", "caf\u00e9", "")
    ]


def test_case_and_accents_are_the_models_own() -> None:
    assert keys_of("Caf\u00e9 CAFE cafe\u0301", WORDS) == ("cafe", "cafe", "cafe")
    tokenizer = make_tokenizer()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    [keyed] = ListKeys(WORDS, Tokenizer(tokenizer, "cased")).of_texts(["Caf\u00e9 caf\u00e9"], 64)
    assert keyed.keys == ("caf\u00e9", "caf\u00e9")


def test_a_word_cut_off_at_the_end_keeps_its_list() -> None:
    """Where only the first pieces of the last word fit, its key is still that of all of it."""
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    text = "bank kubernetes"
    [keyed] = ListKeys(WORDS, tokenizer).of_texts([text], 5)  # two of them special, three pieces left
    assert keyed.keys == ("bank", "kubernet")
    assert [text[start:end] for start, end in keyed.spans.tolist()] == ["bank", "kubernetes"]


def test_a_very_long_word_has_a_short_key_of_its_own() -> None:
    first, second = "x" * 5000, "x" * 4999 + "y"
    one, other = keys_of(f"{first} {second}", WORDS, 10**5)
    assert one != other
    assert one is not None
    assert len(one.encode()) <= LONGEST_KEY
    assert shorten("\u6771" * 40) != shorten("\u6771" * 41)
    assert len(shorten("\u6771" * 40).encode()) <= LONGEST_KEY


def test_a_text_without_words_has_no_mentions() -> None:
    assert keys_of("", WORDS) == ()
    assert keys_of(" \t\n", PAPER) == ()


# Cutting


@pytest.mark.parametrize("profile", [PAPER, WORDS])
def test_long_texts_are_cut_in_pieces_without_a_difference(
    monkeypatch: pytest.MonkeyPatch, profile: ScoringProfile
) -> None:
    """A tokenizer takes some 170 bytes a token, so a text of megabytes is never cut all at once."""
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    keys = ListKeys(profile, tokenizer)
    texts = [" ".join(random_texts(40, seed=seed)) for seed in range(3)] + ["", "river\n\n bank " * 50]
    whole = tokenizer.cut(texts, 300) + tokenizer.cut(texts, 10**6)
    whole_keys = [keys.of(text, tokens) for text, tokens in zip(texts * 2, whole, strict=True)]
    monkeypatch.setattr("coil.tokens.tokenizer.PIECE", 100)
    pieces = tokenizer.cut(texts, 300) + tokenizer.cut(texts, 10**6)
    for one, other in zip(whole, pieces, strict=True):
        assert one.input_ids.tolist() == other.input_ids.tolist()
        assert one.spans.tolist() == other.spans.tolist()
        assert one.dropped == other.dropped
    for keyed, text, tokens in zip(whole_keys, texts * 2, pieces, strict=True):
        again = keys.of(text, tokens)
        assert keyed.keys == again.keys
        assert keyed.spans.tolist() == again.spans.tolist()


def test_long_words_are_not_remembered() -> None:
    keys = ListKeys(WORDS, Tokenizer(make_tokenizer(), "tiny"))
    long, short = "𝔞" * 2_000, "kubernetes"
    for _ in range(2):
        assert keys.of_word(long) == keys._key_of_word(long)
        assert keys.of_word(short) == keys._key_of_word(short)
        assert keys._of_short.cache_info().currsize == 1
