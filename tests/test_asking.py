"""Operators of queries, pages, sorting, duplicates and suggestions, against plain Python."""

from __future__ import annotations

import contextlib
import json
import pickle
import re
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from coil.cli.main import run
from coil.errors import InputError, SearchTimeout
from coil.hits.hit import Hit
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.storage.conditions import Phrase
from coil.texts.asking import Condition, read_question
from coil.tokens.list_keys import ListKeys
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.config import ModelConfig
from coil.vectors.export import export_model
from tests.hash_encoder import HashEncoder
from tests.tiny import PROFILE, WEIGHED, make_model

FIELDS = {"title", "year", "tags"}


def conditions(query: str) -> list[str]:
    return [str(condition) for condition in read_question(query, FIELDS.__contains__).conditions]


# ---- the grammar


@pytest.mark.parametrize(
    "query",
    [
        "",
        " ",
        "what's a well-known state-of-the-art method?",
        "cost - benefit",
        "the C++ -- or C -- standard",
        "-5 degrees, +49 30 1234, -.5",
        "+ - \"\" '' : ::",
        'a man 5\'10" tall and a 6" nail',
        'the "unpaired',
        "rock 'n' roll",
        "error: file not found",
        "std::vector http://example.org/a:b title: x :title",
        "note:here",
        "ratio 3:4, 12:30",
        'the "bank"er',
        "“unpaired too",
        "a+b a-b a:b",
    ],
)
def test_plain_sentences_are_plain_queries(query: str) -> None:
    question = read_question(query, FIELDS.__contains__)
    assert (question.text, question.conditions) == (query, ())


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ('river "steep bank"', "river  steep bank ", ['"steep bank"']),
        ("river +bank", "river  bank", ["+bank"]),
        ("river -money", "river       ", ["-money"]),
        ('river -"due date" x', "river             x", ['-"due date"']),
        ("title:bank river", "      bank river", ["title:bank"]),
        ('-title:"steep bank" river', "                    river", ['-title:"steep bank"']),
        ("+year:2020", "      2020", ["year:2020"]),
        ("river year:2020. title:bank?", "river      2020        bank ", ["year:2020", "title:bank"]),
        ('river title:"bank."', "river        bank. ", ['title:"bank."']),
        ("“steep bank”.", " steep bank .", ['"steep bank"']),
        ('what is "money"?', "what is  money ?", ['"money"']),
        ("+note:x", " note:x", ["+note:x"]),
        ("river -well-known, x", "river              x", ["-well-known"]),
        ("river +bank, x", "river  bank  x", ["+bank"]),
    ],
)
def test_operators(query: str, text: str, expected: list[str]) -> None:
    assert conditions(query) == expected
    question = read_question(query, FIELDS.__contains__)
    assert question.text == text
    assert len(question.text) == len(query)


def test_a_query_must_look_for_something() -> None:
    for query in ("-money", '-"due date" -bank', "-title:bank !"):
        with pytest.raises(InputError, match="only excludes words"):
            read_question(query, FIELDS.__contains__)
    with pytest.raises(InputError, match="exceeds the limit of 50 conditions"):
        read_question("+a " * 51, FIELDS.__contains__)


@given(st.text(alphabet="ab \"“”+-:\n'c5.", max_size=60))
def test_any_text_can_be_read(query: str) -> None:
    try:
        question = read_question(query, {"a"}.__contains__)
    except InputError:
        return
    assert len(question.text) == len(query)
    for written, read in zip(query, question.text, strict=True):
        assert read in (written, " ")
    again = read_question(question.text, set().__contains__) if '"' not in question.text else None
    assert again is None or all(condition.field is None for condition in again.conditions)


def test_a_long_query_is_read_in_a_moment() -> None:
    began = time.monotonic()
    for part in ('"a ', "“a ", "+a:", '-"', "a:"):
        with contextlib.suppress(InputError):  # too many conditions
            read_question(part * 100_000, lambda _: False)
    assert conditions("+a" + ".;" * 100_000 + "b")  # marks within a word are not at its end
    assert time.monotonic() - began < 30


# ---- against plain Python

WORDS = ["river", "bank", "banks", "money", "Loan", "the", "steep"]
MARKS = [" ", " ", " ", ", ", "-", "\n"]
texts = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(MARKS)), min_size=1, max_size=70).map(
    lambda parts: "".join(word + mark for word, mark in parts)
)
documents = st.lists(
    st.fixed_dictionaries({"text": texts, "title": st.none() | texts, "year": st.none() | st.integers(0, 3)}),
    min_size=1,
    max_size=8,
)
words = st.sampled_from([word for word in WORDS if word != "the"])
asked_for = st.builds(
    Condition, words, st.just(False), st.booleans(), st.sampled_from([None, None, "title"])
) | st.builds(
    Condition,
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3)
    .filter(lambda some: set(some) != {"the"})
    .map(" ".join),
    st.just(True),
    st.booleans(),
    st.sampled_from([None, None, "title"]),
)


def in_a_row(said: str, text: str) -> bool:
    """The words of a phrase in a text, one after another."""
    wanted, found = (re.findall(r"\w+", part.lower()) for part in (said, text))
    return any(found[at : at + len(wanted)] == wanted for at in range(len(found)))


def fulfils(condition: Condition, document: dict[str, Any]) -> bool:
    if condition.field is not None:
        value = document[condition.field]
        return (value is not None and in_a_row(condition.text, str(value))) == condition.wanted
    if condition.phrase:
        return in_a_row(condition.text, document["text"]) == condition.wanted
    stem = condition.text.lower().removesuffix("s")
    forms = {word.lower().removesuffix("s") for word in re.findall(r"\w+", document["text"])}
    return (stem in forms) == condition.wanted


def columns(hits: list[Hit]) -> list[tuple[str, float, tuple[int, int]]]:
    return [(hit.doc_id, hit.score, hit.chunk) for hit in hits]


@settings(max_examples=30, deadline=None)
@given(first=documents, second=documents, asked=st.lists(asked_for, min_size=1, max_size=3), data=st.data())
def test_conditions_keep_what_plain_python_keeps(
    first: list[dict[str, Any]],
    second: list[dict[str, Any]],
    asked: list[Condition],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """After an update and a deletion, over several segments and chunks, for every system."""
    with create(tmp_path_factory.mktemp("a") / "a.coil", encoder=HashEncoder()) as index:
        kept = {}
        for some in (first, second):
            given = {f"d{n}": document for n, document in enumerate(some)}
            index.update([{"id": doc_id, **document} for doc_id, document in given.items()])
            kept.update(given)
        gone = data.draw(st.sampled_from(sorted(kept)))
        index.delete([gone])
        del kept[gone]
        by = data.draw(st.sampled_from(["coil", "bm25", "dense"]))
        is_field = any(document["title"] is not None for document in kept.values())
        if not is_field:
            asked = [condition for condition in asked if condition.field is None]
        query = " ".join(["river money", *map(str, asked)])
        question = index.read_query(query)
        assert sorted(map(str, question.conditions)) == sorted(map(str, asked))
        wanted = {
            doc_id
            for doc_id, document in kept.items()
            if all(
                fulfils(condition, {**document, "text": index.document(doc_id).text})  # with its title
                for condition in asked
            )
        }
        every = index.search(question.text, k=100, by=by, plain=True)
        expected = [part for part in columns(every) if part[0] in wanted]
        assert columns(index.search(query, k=100, by=by)) == expected
        assert columns(index.search(query, k=2, by=by)) == expected[:2]
        assert columns(index.search(query, k=2, by=by, offset=1)) == expected[1:3]


# ---- one by one


@pytest.fixture
def notes(tmp_path: Path) -> Index:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    index.add(
        [
            {"id": "a", "text": "The river bank is steep.", "title": "Rivers", "year": 2019},
            {"id": "b", "text": "River, bank; money!", "title": "Banks of the river", "year": "2021"},
            {"id": "c", "text": "A bank lends money. C++ river", "year": 2020, "tags": ["old", "river bank"]},
            {"id": "d", "text": "the  RIVER bank is steep.", "year": None},
        ]
    )
    return index


def found(index: Index, query: str, **how: Any) -> str:
    return "".join(sorted(hit.doc_id for hit in index.search(query, **how)))


def test_each_operator(notes: Index) -> None:
    assert found(notes, "river") == "abcd"
    assert found(notes, '"river bank"') == "abd"  # punctuation between words does not matter
    assert found(notes, '"river, bank"') == "b"  # unless it was asked for
    assert found(notes, '"RIVER BANK is"') == "ad"
    assert found(notes, '"river banks"') == ""  # word for word
    assert found(notes, "river +banks") == "abcd"  # a form of it will do
    assert found(notes, "river -money") == "ad"
    assert found(notes, 'river -"steep"') == "bc"
    assert found(notes, "river title:river") == "b"
    assert found(notes, 'river -title:"of the"') == "acd"
    assert found(notes, 'river tags:"river bank"') == "c"
    assert found(notes, 'river tags:"old river"') == ""  # of two parts
    assert found(notes, "river year:2021") == "b"
    assert found(notes, '"c++"') == "c"
    assert found(notes, "river +money", filter="year >= 2020.5") == "b"
    assert found(notes, "-money", plain=True) == found(notes, "money", plain=True) != ""


def test_a_field_of_deleted_documents_only_is_no_field(notes: Index) -> None:
    """Whatever was deleted, an index answers like a new one, and compacting it changes no hit."""

    def told() -> tuple[str, str]:
        with pytest.raises(InputError, match="no document has the field 'tags'"):
            notes.search("river", sort="tags")
        return found(notes, "tags:river"), found(notes, "river title:river")

    notes.add([{"id": "e", "text": "loan", "tags": "river"}])
    assert found(notes, "tags:river") == "ce"
    with notes.pinned() as still:
        notes.delete(["c", "e"])
        before = told()
        assert before == ("abd", "b")  # text now; the title of b is still there
        notes.compact()
        assert told() == before
        assert found(still, "tags:river") == "ce"  # type: ignore[arg-type]


def test_words_of_several_parts_are_phrases(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        texts = [
            "the river is well known",
            "a river bank well, known",
            "river: known and well",
            "c river",
            "c++ river",
        ]
        index.add([{"id": str(number), "text": text} for number, text in enumerate(texts)])
        assert found(index, "river +well-known") == ""  # no text has the hyphen
        assert found(index, 'river +"well known",') == "01"
        assert found(index, "river -well-known") == "01234"
        assert found(index, "river -c++") == "0123"
        assert found(index, "river +c++") == "4"
        assert found(index, "river +known,") == "012"


def test_symbols_attached_to_a_word_are_not_part_of_it(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "0", "text": "The Acme\u2122 router", "name": "Acme\u2122 router"}])
        index.add([{"id": "1", "text": "a router, great\U0001f600 value"}])
        assert found(index, "acme", by="bm25") == found(index, "Acme\u2122", by="bm25") == "0"
        assert found(index, "+acme") == found(index, '"acme router"') == "0"
        assert found(index, "router -acme") == found(index, 'router -"acme router"') == "1"
        assert found(index, '"great value"') == found(index, "router +great") == "1"
        assert found(index, '"Acme\u2122 router"') == "0"  # asked for, it matters
        assert found(index, '"great\u2122 value"') == ""
        assert found(index, "router name:acme") == found(index, 'router name:"acme router"') == "0"


def test_several_chinese_characters_are_a_phrase(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "0", "text": "我爱中国人民", "title": "在中国"}, {"id": "1", "text": "国家在心中"}])
        assert found(index, "+中国") == found(index, '"中国"') == "0"
        assert found(index, "国家 -中国") == found(index, '国家 -"中国"') == "1"
        assert found(index, "国 title:中国") == "0"
        assert found(index, "国 title:国中") == ""
        assert found(index, "国 +国") == "01"
        assert found(index, "国 +人人") == ""


PARTS = ["中", "国", "東京", "tower", "x", "7", "-", "_", "🙂", "é", "ß", "ひら", "สวัสดี", "한"]
mixed = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("".join)
sentences = st.lists(mixed, min_size=1, max_size=4).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(mixed, min_size=1, max_size=4).map(" ".join), min_size=3, max_size=6),
    data=st.data(),
)
def test_quotes_change_nothing_where_a_word_has_one_form(
    texts: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing of what these words are made of has another form with the same stem."""
    operand = (mixed | st.sampled_from(" ".join(texts).split())).filter(lambda said: said[0].isalpha())
    with create(tmp_path_factory.mktemp("a") / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": str(n), "text": f"river {text}", "title": text} for n, text in enumerate(texts)])
        for said in data.draw(st.lists(operand, min_size=4, max_size=8)):
            for sign in ("+", "-", "title:", "-title:"):
                assert found(index, f"river {sign}{said}") == found(index, f'river {sign}"{said}"')


@pytest.mark.parametrize("prefix", [True, False])
def test_lists_of_pieces_know_no_words(tmp_path: Path, prefix: bool) -> None:
    """Byte pairs: a word has another name at the beginning of a text than after a space."""
    texts = ["the steep river bank", "bank of the river", "The River Bank", "bank ox riverbank"]
    rust = RustTokenizer(BPE(unk_token=None))
    rust.pre_tokenizer = ByteLevel(add_prefix_space=prefix)
    rust.train_from_iterator(texts, BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"]))
    rust.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    encoder = HashEncoder(profile=PROFILE)
    encoder.tokenizer = Tokenizer(rust, "pairs")
    encoder.keys = ListKeys(encoder.config.profile, encoder.tokenizer)
    with create(tmp_path / "a.coil", encoder=encoder) as index:
        index.add([{"id": str(number), "text": text} for number, text in enumerate(texts)])
        assert found(index, '"river bank"') == "02"
        assert found(index, "steep +bank") == "0123"
        assert found(index, "steep -bank") == ""
        assert found(index, "steep -river") == "3"
        assert found(index, "the +banko") == ""


def test_a_phrase_is_found_wherever_a_long_text_is_cut(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        long = "water " * 12_000
        index.add(
            [
                {"id": "a", "text": long + "river" + " " * 100_000 + "bank " + long},
                {"id": "b", "text": "bank,river," + "x-" * 60_000 + "river bank"},
                {"id": "c", "text": "river 银行 " + "河流银行" * 30_000 + "bank"},
                {"id": "d", "text": long + "riverbank bank " + "river " + long},
            ]
        )
        assert found(index, '"river bank"') == "ab"
        assert found(index, 'river "河流银行bank"') == "c"
        phrase = Phrase(index.encoder.tokenizer, "a b")
        for n in range(65_530, 65_545):
            assert phrase.is_in("x" * (n // 2) + " " * (n - n // 2) + "a b " + "y" * 40_000)
            assert not phrase.is_in("xa" * (n // 2) + " b " + "y " * 40_000)


def test_what_cannot_be_looked_for_is_refused(notes: Index) -> None:
    for query in ("river +the", 'river "of the"', "river -a"):
        with pytest.raises(InputError, match="contains only stop words"):
            notes.search(query)
    with pytest.raises(SearchTimeout):
        notes.answer_many(['"river bank"'], timeout=1e-9)


def test_a_batch_answers_plain_and_other_queries_in_order(notes: Index) -> None:
    queries = ["river", "river -money", "money", '"steep"']
    together = notes.search_many(queries, k=10)
    assert [columns(hits) for hits in together] == [columns(notes.search(query)) for query in queries]


def test_pages_are_the_parts_of_one_answer(notes: Index) -> None:
    every = columns(notes.search("river", k=10))
    assert [columns(notes.search("river", k=1, offset=n)) for n in range(5)] == [[hit] for hit in every] + [
        []
    ]
    assert [hit.rank for hit in notes.search("river", k=2, offset=2)] == [3, 4]
    for hit in notes.search("river", k=2, offset=2):
        assert hit.text == notes.document(hit.doc_id).text
    with pytest.raises(InputError, match="offset is negative"):
        notes.search("river", offset=-1)


def test_sorting_by_a_field(notes: Index) -> None:
    def order(sort: str, **how: Any) -> str:
        return "".join(hit.doc_id for hit in notes.search("river", sort=sort, **how))

    assert order("year") == "acbd"  # "2021" is a number, too; who has none comes last
    assert order("-year") == "bcad"
    assert order("-year", k=2, offset=1) == "ca"
    assert order("year", filter="year > 2019") == "cb"
    assert order("title")[:2] == "ba"
    pages = [order("year", k=1, offset=offset, fold_duplicates=True) for offset in range(5)]
    assert "".join(pages) == order("year", fold_duplicates=True)
    for sort, message in (("pages", "no document has the field 'pages'"), ("a b", "not the name of a field")):
        with pytest.raises(InputError, match=message):
            notes.search("river", sort=sort)


def test_descending_texts_come_before_numbers(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        values = [5, "x", None, "7", "a"]
        index.add([{"id": str(n), "text": "river", "z": value} for n, value in enumerate(values)])
        assert [hit.doc_id for hit in index.search("river", sort="z")] == list("03412")
        assert [hit.doc_id for hit in index.search("river", sort="-z")] == list("14302")


def test_large_whole_numbers_are_sorted_and_found_exactly(tmp_path: Path) -> None:
    """Also where they differ by less than floats can tell, over several segments and after a merge."""
    at_most, beyond = 2**53, 2**63
    values: list[Any] = [
        at_most + 1, at_most, at_most + 2.0, at_most + 3, -(at_most + 1), -at_most, beyond, beyond + 1,
        float(beyond), -beyond - 3, 10**30, 10**30 + 1, 1e30, str(at_most + 4), " 10 ", 10.5, "1" * 5000, 0,
    ]  # fmt: skip

    def exact(number: int) -> Fraction:
        value = values[number]
        return Fraction(value) if not isinstance(value, str) or len(value) < 100 else Fraction(10**400)

    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        for begin in range(0, len(values), 5):
            some = list(enumerate(values))[begin : begin + 5]
            index.add([{"id": str(n), "text": f"river {'bank ' * n}", "n": value} for n, value in some])
        scored = [int(hit.doc_id) for hit in index.search("river", k=100)]
        for _ in range(2):
            for sort, descending in (("n", False), ("-n", True)):
                pages = [index.search("river", k=4, offset=at, sort=sort) for at in range(0, 24, 4)]
                expected = sorted(scored, key=exact, reverse=descending)
                assert [int(hit.doc_id) for page in pages for hit in page] == expected
            for value in (at_most + 3, beyond, beyond + 1, 10**30, 10**30 + 1):
                assert found(index, f"river n:{value}") == str(values.index(value))
            index.compact()


def test_sorted_pages_never_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coil.hits.paging.SORTED", 30)
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": str(n), "text": f"river {'bank ' * (n % 9)}", "n": -n} for n in range(100)])
        for fold in (False, True):
            pages = [
                [hit.doc_id for hit in index.search("river", k=7, offset=at, sort="n", fold_duplicates=fold)]
                for at in range(0, 42, 7)
            ]
            shown = [doc_id for page in pages for doc_id in page]
            assert len(shown) == len(set(shown)) <= 30
            assert fold or len(shown) == 30
            assert shown == sorted(shown, key=int, reverse=True)


def test_an_answer_says_whether_all_hits_were_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": str(n), "text": "river" if n else "bank", "n": -n} for n in range(10)])
        for most, best in ((10, None), (9, 9), (5, 5)):
            monkeypatch.setattr("coil.hits.paging.SORTED", most)
            for how in ({}, {"k": 1}, {"offset": 3}, {"offset": 20}, {"fold_duplicates": True}):
                hits = index.search("river", sort="n", **how)  # type: ignore[arg-type]
                assert hits.sorted_best == best
                assert pickle.loads(pickle.dumps(hits[:2])).sorted_best == best
            assert [hit.doc_id for hit in index.search("river", sort="-n", k=most)] == [
                doc_id
                for _, doc_id in sorted(
                    (int(hit.doc_id), hit.doc_id) for hit in index.search("river", k=most)
                )
            ]
        assert index.search("river").sorted_best is None
        assert index.search("river", k=0, sort="n").sorted_best is None
        assert index.search("river", sort="n", filter="n > -5").sorted_best is None
        assert index.search("river +bank", sort="n").sorted_best is None
        assert index.search("river", sort="n", min_share=2.0).sorted_best is None


def test_duplicates_are_folded_into_the_first(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": f"same{n}", "text": "river  bank" if n % 2 else "River bank"} for n in range(300)])
        index.add([{"id": "other", "text": "river"}, {"id": "more", "text": "bank"}])
        hits = index.search("river bank", k=3, fold_duplicates=True)
        assert sorted(hit.doc_id for hit in hits) == ["more", "other", "same0"]
        [same] = [hit for hit in hits if hit.doc_id == "same0"]
        assert sorted(same.duplicates) == sorted(f"same{n}" for n in range(1, 300))
        assert [hit.duplicates for hit in hits if hit is not same] == [(), ()]
        assert [hit.rank for hit in index.search("river bank", k=2, offset=1, fold_duplicates=True)] == [2, 3]
        assert len(index.search("river bank", k=3)) == 3


def test_a_misspelled_word_gets_a_suggestion(notes: Index) -> None:
    def meant(query: str) -> dict[str, str]:
        return {of.word: of.suggestion for of in notes.suggest(query)}

    assert meant("Rivre bnak steap") == {"Rivre": "river", "bnak": "bank", "steap": "steep"}
    assert meant("bamk xyzzy river mony") == {"bamk": "bank", "mony": "money"}
    assert meant("the river") == {}
    [only] = notes.suggest("a  rivver")
    assert only.span == (3, 9)


def test_an_ordinary_word_gets_only_a_suggestion_with_the_same_first_letter(tmp_path: Path) -> None:
    """The bundled model's vocabulary contains later and colour, but not vater and kolor."""
    with create(tmp_path / "a.coil") as index:
        index.add([{"id": str(n), "text": "The color of water."} for n in range(2)])
        assert [of.suggestion for of in index.suggest("later colour")] == ["color"]
        assert [of.suggestion for of in index.suggest("vater kolor")] == ["water", "color"]


def test_invalid_characters_of_a_shell_are_no_fault_of_the_tokenizer(notes: Index) -> None:
    """A word in Latin-1 in a terminal with UTF-8 reaches Python with lone surrogates."""
    assert notes.suggest("na\udcefve rivver") == notes.suggest("na\ufffdve rivver")
    assert notes.suggest("rivver \udcefave")[0].suggestion == "river"
    for query in ("na\udcefve river", '"na\udcefve river"', "+na\udcefve", "title:na\udcefve"):
        assert found(notes, query) == found(notes, query.replace("\udcef", "\ufffd"))


def test_a_word_of_one_text_is_suggested_where_no_other_is_as_near(tmp_path: Path) -> None:
    texts = ["a nginx log", "the kafka queue", "the kappa test", "the kappa and the best", "the bath"]
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        for number, text in enumerate(texts):  # one segment each
            index.add([{"id": str(number), "text": text}])

        def meant(query: str) -> list[str]:
            return [of.suggestion for of in index.suggest(query)]

        assert meant("ngnix") == ["nginx"]
        assert meant("kafca") == ["kafka"]
        assert meant("kafpa") == ["kappa"]  # more texts have it than kafka
        assert meant("tesst") == ["test"]
        assert meant("beth tath lafka nest") == ["bath"]  # a word of one text begins with the same letter
        index.delete(["1"])
        assert meant("kafca kafpa") == ["kappa"]


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path / "model", ModelConfig(8, 8, "mean", "unit", WEIGHED))
    export_model(model)
    with create(tmp_path / "a.coil", model=str(model)) as index:
        for number, text in enumerate(["river bank", "bank money", "river bank", "money river"]):
            index.add([{"id": str(number), "text": text, "year": 2000 + number}])

    def search(*arguments: str) -> tuple[str, str]:
        run(["search", str(tmp_path / "a.coil"), "--json", *arguments])
        told = capsys.readouterr()
        return "".join(json.loads(line)["doc_id"] for line in told.out.splitlines()), told.err

    assert sorted(search('"river bank"')[0]) == ["0", "2"]
    assert sorted(search("bank -money")[0]) == ["0", "2"]
    assert sorted(search("--plain", "--", "-money")[0]) == ["0", "1", "2", "3"]
    assert search("river", "--sort", "-year", "--offset", "1", "-k", "2")[0] == "21"
    assert len(search("river bank", "--fold-duplicates")[0]) == 3
    assert "no hits: no document matches +loan" in search("river +loan")[1]
    assert "no document contains 'rivre'; did you mean 'river'?" in search("rivre")[1]
    assert "apply to a single query only" in search("--queries", "q", "--run", "r", "--sort", "year")[1]
