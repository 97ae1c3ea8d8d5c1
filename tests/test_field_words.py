"""`field:word`: SQLite leaves out values that cannot match, which must change nothing but the time."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import NormalizedString, normalizers

from coil.errors import SearchTimeout
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.storage.conditions import Phrase, documents_with
from coil.storage.documents import DocumentReader
from coil.texts.asking import Condition
from coil.tokens.tokenizer import Tokenizer
from tests.hash_encoder import HashEncoder
from tests.tiny import make_tokenizer


class _Own:
    """A normalizer of a program's own, which nobody can look into."""

    def normalize(self, text: NormalizedString) -> None:
        text.replace("k", "c")


NORMALIZERS = {
    "bert": normalizers.BertNormalizer(lowercase=True),
    "cased": normalizers.BertNormalizer(lowercase=False),
    "none": None,
    "plain sequence": normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Sequence([normalizers.StripAccents()])]
    ),
    "sequence": normalizers.Sequence([normalizers.NFD(), normalizers.Replace("k", "c")]),
    "prefix": normalizers.Prepend("x"),
    "own": normalizers.Normalizer.custom(_Own()),
}
KEEP_ASCII = {"bert", "cased", "none", "plain sequence"}


def tokenizer_with(name: str) -> Tokenizer:
    rust = make_tokenizer()
    rust.normalizer = NORMALIZERS[name]
    return Tokenizer(rust, name)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizers_that_keep_printable_ascii_are_known(name: str) -> None:
    tokenizer = tokenizer_with(name)
    assert tokenizer.keeps_ascii == (name in KEEP_ASCII)
    if tokenizer.keeps_ascii:
        printable = "".join(map(chr, range(32, 127))).strip()
        assert tokenizer.normalise(printable).lower() == printable.lower()
        for char in printable:
            assert tokenizer.normalise(f"a{char}k").lower() == f"a{char}k".lower()


# ---- against plain Python

CHARS = "aAcCkKeiI159 ..-_+\"'\\/éÉİıßK中国ab\u0301\u200d\x01\x7f\n\t™"
few = st.text("acCkK ", min_size=1, max_size=3)  # so that matches are frequent
strings = few | st.text(CHARS, max_size=12)
phrases = (few | st.text(CHARS, min_size=1, max_size=4)).filter(re.compile(r"\w").search)  # as in any query
plain_values = (
    strings
    | st.integers(-20, 2000)
    | st.sampled_from([2**63, 10**30, 1e16, 1.5, 0.0, -1e-7])
    | st.booleans()
    | st.none()
)
values = plain_values | st.lists(plain_values | st.lists(strings, max_size=2), max_size=3)
nested = st.just(3) | st.fixed_dictionaries({"h": values})
record = st.fixed_dictionaries({}, optional={"f": values, "g.h": values, "g": nested})
records = st.lists(record, min_size=1, max_size=12)
words_said = st.sampled_from(["a", "AC", "k", "1", "5", "true", "false", "e", "1e", "é", "中", "i̇", "k k"])


def texts_of(value: Any) -> list[str]:
    if isinstance(value, list):
        return [text for part in value for text in texts_of(part)]
    if isinstance(value, bool):
        return [str(value).lower()]
    return [str(value)] if isinstance(value, str | int | float) else []


def contains(tokenizer: Tokenizer, said: str, value: Any) -> bool:
    """Whether a value contains a phrase, without any shortcut."""
    wanted = tokenizer.normalise(said).lower()
    pattern = re.compile(r"[^\W_]+|[^\w\s]|_" if re.search(r"[^\w\s]|_", wanted) else r"[^\W_]+")
    words = pattern.findall(wanted)
    for text in texts_of(value):
        found = pattern.findall(tokenizer.normalise(text).lower())
        if any(found[at : at + len(words)] == words for at in range(len(found) - len(words) + 1)):
            return True
    return False


@settings(max_examples=150, deadline=None)
@given(
    kept=records,
    said=phrases | words_said,
    field=st.sampled_from(["f", "g.h"]),
    name=st.sampled_from(sorted(NORMALIZERS)),
    step=st.sampled_from([1, 1, 2, 5]),
    small=st.booleans(),
)
def test_it_keeps_what_plain_python_keeps(
    kept: list[dict[str, Any]],
    said: str,
    field: str,
    name: str,
    step: int,
    small: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever the values and the tokenizer are; with few and many documents; in batches of any size."""
    encoder = HashEncoder()
    folder = tmp_path_factory.mktemp("a") / "a.coil"
    with create(folder, encoder=encoder) as index, pytest.MonkeyPatch.context() as patch:
        if small:
            for limit, most in (("_SCANNED", 4), ("AT_ONCE", 2), ("BATCH_BYTES", 50), ("_LARGE", 30)):
                patch.setattr(f"coil.storage.documents.{limit}", most)
        given = dict(enumerate((record for one in kept for record in [one, *[{}] * (step - 1)]), start=1))
        index.add([{"id": str(ordinal), "text": "river", **fields} for ordinal, fields in given.items()])
        alive = list(given)[::step]
        index.delete([str(ordinal) for ordinal in given if ordinal not in alive])
        tokenizer = encoder.tokenizer = tokenizer_with(name)
        with index.held() as snapshot:
            plain = {
                ordinal: value for ordinal, value in snapshot.field_values(field, alive) if value is not None
            }
            assert plain == {at: value for at in alive if (value := _value(given[at], field)) is not None}
            expected = [at for at in alive if at in plain and contains(tokenizer, said, plain[at])]
            for wanted in (True, False):
                found = documents_with(snapshot, encoder, [Condition(said, True, wanted, field)])
                assert found.tolist() == [at for at in alive if (at in expected) == wanted]


def _value(fields: dict[str, Any], name: str) -> Any:
    if name in fields:
        return fields[name]
    inner = fields.get(name[0])
    return inner["h"] if isinstance(inner, dict) else None


def test_texts_with_control_characters_are_checked_exactly(tmp_path: Path) -> None:
    """The tokenizer removes them: they are not between the parts of a word, but within it."""
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        texts = ["ac\x01me", "ac\x7fme", "ac\nme", "ac\u200dme", "ACMÉ", "acme inc", "ac me", '"ac"me']
        index.add([{"id": str(n), "text": "river", "f": text} for n, text in enumerate(texts)])
        assert sorted(hit.doc_id for hit in index.search("river f:acme")) == ["0", "1", "3", "4", "5"]


# ---- what it costs


@pytest.fixture
def many(tmp_path: Path) -> Index:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    brands = ["Acme" if n % 100 == 0 else f"Maker {n}" for n in range(3_000)]
    index.add(
        {"id": str(n), "text": "river", "brand": brand, "city": f"Köln {n % 7}"}
        for n, brand in enumerate(brands)
    )
    return index


def test_few_values_are_checked_by_the_tokenizer(many: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    is_in = Phrase.is_in

    def noted(self: Phrase, text: str) -> bool:
        checked.append(text)
        return is_in(self, text)

    monkeypatch.setattr(Phrase, "is_in", noted)
    for query, hits, most in (("brand:acme", 30, 30), ("-brand:acme", 2_970, 30), ("city:köln", 3_000, 7)):
        checked.clear()
        assert len(many.search(f"river {query}", k=5_000)) == hits
        assert len(checked) <= most


def test_many_values_are_read_with_few_statements(many: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    statements: list[str] = []
    watched = DocumentReader._watched

    def noted(self: DocumentReader, take: Any, columns: str, where: str, *rest: Any) -> Any:
        statements.append(where)
        return watched(self, take, columns, where, *rest)

    monkeypatch.setattr(DocumentReader, "_watched", noted)
    with many.held() as snapshot:
        values = dict(snapshot.field_values("brand", range(1, 3_001), None, "acme"))
        assert len(statements) == 1
        assert set(values) == set(range(1, 3_001, 100))
        assert dict(snapshot.field_values("brand", range(3_000, 0, -100)))[100] == "Maker 99"


def test_it_ends_at_the_time_limit(many: Index) -> None:
    with many.held() as snapshot:
        conditions = [Condition("acme", field="brand")]
        with pytest.raises(SearchTimeout):
            documents_with(snapshot, many.encoder, conditions, time.monotonic() - 1)
