"""Tables that a program has: DataFrames and Arrow tables in, hits out as a DataFrame."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import coil
from coil.errors import DuplicateId, InputError, MissingExtra
from coil.hits.frame import _numbers
from coil.indexes.opening import create
from coil.texts.corpora import read_documents
from coil.texts.values import Document
from tests.files import put
from tests.hash_encoder import HashEncoder

COLUMNS = {
    "id": [f"d{i}" for i in range(2500)],
    "text": [None if i == 1 else f"river {i}" for i in range(2500)],
    "year": [None if i == 2 else 2000 + i for i in range(2500)],
    "tags": [["a", str(i)] for i in range(2500)],
}
EXPECTED = [
    Document(d, t or "", {"year": y, "tags": tags}) for d, t, y, tags in zip(*COLUMNS.values(), strict=True)
]


def _pandas(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def _polars(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


def _arrow(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pyarrow").table(columns)


def _batch(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pyarrow").RecordBatch.from_pydict(columns)


def _reader(columns: dict[str, Any]) -> Any:
    return _arrow(columns).to_reader(max_chunksize=700)


class Dataset:
    """As `datasets.Dataset` shows itself, for machines without it."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.column_names = list(columns)
        self._columns = columns

    def __iter__(self) -> Any:
        rows = zip(*self._columns.values(), strict=True)
        return (dict(zip(self.column_names, row, strict=True)) for row in rows)


Dataset.__module__ = "datasets.arrow_dataset"


def _real_dataset(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


KINDS = [_pandas, _polars, _arrow, _batch, _reader, Dataset, _real_dataset]
Make = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize("make", KINDS)
def test_every_kind_of_table_is_read(make: Make) -> None:
    assert list(read_documents(make(COLUMNS))) == EXPECTED


@pytest.mark.parametrize("make", KINDS)
def test_every_kind_of_table_goes_into_an_index(tmp_path: Path, make: Make) -> None:
    columns = {"url": [1, 2], "q": ["river", "otter"], "a": ["bank", None], "head": ["One", "Two"]}
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        with pytest.raises(InputError, match="has no column 'Q'; its columns are 'url, q, a, head'"):
            index.add(make(columns), id_column="url", text_column="Q")
        assert len(index) == 0
        named: dict[str, Any] = {"id_column": "url", "text_column": ["q", "a"], "title_column": "head"}
        assert index.add(make(columns), **named) == 2
        assert index.document("1") == Document("1", "One\nriver\nbank", {"title": "One"})
        assert index.document("2").text == "Two\notter"
        with pytest.raises(DuplicateId, match="line 1"):
            index.add(make(columns), **named)
        assert index.update(make(columns), **named) == 2


def test_a_pandas_index_with_a_name_is_a_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": ["a", "b"], "text": ["x", "y"]}, index=[7, 8])
    assert [d.doc_id for d in read_documents(frame)] == ["a", "b"]
    assert list(read_documents(frame.set_index("id"))) == [Document("a", "x"), Document("b", "y")]
    deep = frame.set_index(["id", "text"])
    assert [(d.doc_id, d.text) for d in read_documents(deep)] == [("a", "x"), ("b", "y")]


def test_values_of_pandas_become_plain() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "id": np.arange(2),
            "text": pandas.Categorical(["x", None]),
            "when": [datetime(2020, 1, 2), pandas.NaT],
            "n": pandas.array([1, None], dtype="Int64"),
            "f": [0.5, np.nan],
            "v": [np.array([1, 2]), np.array([])],
        }
    )
    assert list(read_documents(frame)) == [
        Document("0", "x", {"when": "2020-01-02 00:00:00", "n": 1, "f": 0.5, "v": [1, 2]}),
        Document("1", "", {"when": None, "n": None, "f": None, "v": []}),
    ]


def test_missing_values_of_pandas_are_missing_in_dicts_too(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        missing = {"day": pandas.NaT, "size": pandas.NA, "some": [pandas.NA, 1]}
        index.add([{"id": "a", "text": "river", **missing}, Document("b", "river", missing)])
        for doc_id in "ab":
            assert index[doc_id].fields == {"day": None, "size": None, "some": [None, 1]}
        assert index.search("river", filter="day exists") == []
        with pytest.raises(InputError, match="the text under 'text' is '5'; expected a string") as caught:
            index.add(pandas.DataFrame({"id": ["c"], "text": [5]}))
        assert caught.value.remedy == "write it as a string"


def test_what_is_no_table_of_documents_is_refused(tmp_path: Path) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    twice = pandas.DataFrame([["a", "b", "c"]], columns=["id", "text", "text"])
    numbers = pandas.DataFrame([["a", "b", "c", "d"]], columns=["id", "text", 1, "1"])
    dictionary = type("DatasetDict", (dict,), {"__module__": "datasets.dataset_dict"})
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        for wrong, reason, remedy in (
            (twice, "two columns of the DataFrame are named 'text'", "rename"),
            (numbers, "two columns of the DataFrame are named '1'", "rename"),
            (polars.LazyFrame({"id": ["a"]}), "got a LazyFrame", "collect"),
            (pandas.Series(["a"]), "got a Series", "to_frame"),
            (dictionary(), "got a DatasetDict", "split"),
            (pandas.DataFrame({"id": ["a"], "words": ["x"]}), "the DataFrame, line 1: no text found", "text"),
        ):
            with pytest.raises(InputError, match=reason) as caught:
                index.add(wrong)
            assert remedy in caught.value.remedy
        assert index.add(pandas.DataFrame({"id": [], "text": []})) == 0
        assert len(index) == 0


def test_dates_that_python_cannot_hold_are_refused(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    polars = pytest.importorskip("polars")
    row = {"id": ["a"], "text": ["river"]}
    date = arrow.table({**row, "day": arrow.array([2**30], arrow.date32())})
    late = arrow.table({**row, "day": arrow.array([2**60], arrow.timestamp("us"))})
    parquet.write_table(date, tmp_path / "date.parquet")
    parquet.write_table(late, tmp_path / "late.parquet")
    frame = polars.DataFrame({**row, "day": polars.Series([2**60]).cast(polars.Datetime("us"))})
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        for given, name in (
            (date, "the Table"),
            (late, "the Table"),
            (late.to_reader(), "the RecordBatch"),
            (frame, "the DataFrame"),
            (read_documents(tmp_path / "date.parquet"), "date.parquet"),
            (read_documents(tmp_path / "late.parquet"), "late.parquet"),
        ):
            with pytest.raises(InputError, match=rf"{name} has a value that cannot be read: .") as caught:
                index.add(given)
            assert caught.value.remedy == "write dates and durations that are out of range as strings"
        assert len(index) == 0


def test_dates_of_numpy_become_texts(tmp_path: Path) -> None:
    day = np.datetime64("2020-01-02", "ns")
    fields = {
        "day": day,
        "days": np.array([day]),
        "far": np.datetime64(2**40, "s"),
        "none": np.datetime64("NaT"),
    }
    text = "2020-01-02T00:00:00.000000000"
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river", **fields, "span": np.timedelta64(5, "ns")}])
        assert index["a"].fields == {
            "day": text,
            "days": [text],
            "far": "36812-02-20T00:36:16",
            "none": None,
            "span": "5 nanoseconds",
        }


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = [arrow.array(["a"]), arrow.array(["river"]), arrow.array(["bank"])]
    parquet.write_table(arrow.table(columns, names=["id", "text", "text"]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"two columns of .*a\.parquet are named 'text'"):
        list(read_documents(tmp_path / "a.parquet"))


def test_columns_of_dicts(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        assert index.add([{"url": "u", "q": "river"}], id_column="url", text_column="q") == 1
        with pytest.raises(InputError, match="has no column 'Q'; its columns are 'id, text'"):
            index.update([{"id": "a", "text": "x"}], title_column="Q")
        with pytest.raises(InputError, match="is a Document, but --text-column q was given"):
            index.add([Document("a", "x")], text_column="q")
        read = read_documents(put(tmp_path / "t.csv", "id,q\n1,x\n"), text_column="q")
        with pytest.raises(InputError, match="have already been read"):
            index.add(read, text_column="q")
        assert len(index) == 1


def test_no_package_is_imported_to_look_at_what_is_given() -> None:
    code = (
        "import sys\n"
        "from coil.texts.corpora import read_documents\n"
        "from coil.texts.given import GivenDocuments\n"
        "list(GivenDocuments([{'id': 1, 'text': 'x'}]))\n"
        "print([m for m in ('pandas', 'polars', 'pyarrow', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_numbers_of_a_csv_file_are_numbers_in_a_frame(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    header = "id,text,year,price,weight,sparse,code,version,large,phone,word,empty,exact"
    rows = [
        "07,river,2020,19.90,1.5,3,007,3.9,9223372036854775807,+49,x,,0.1",
        "8,river bank,1999,5.00,2,,010,3.10,-1,12,7,,0.12345678901234567",
        "9,the river,0,-0.50,-0.25,4,1,3.11,0,13,1e5,,0.1",
    ]
    (tmp_path / "a.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add(read_documents(str(tmp_path / "a.csv")))
        index.add([{"id": "z", "text": "money bank", "year": "soon", "tags": ["1"]}])
        hits = index.search("river", k=3, filter='not id = "z"', by="bm25")
        frame = coil.to_frame(hits).set_index("doc_id").loc[["07", "8", "9"]]
        kinds = {name: frame[name].dtype.kind for name in header.split(",")[2:]}
        numbers = {"year": "i", "price": "f", "weight": "f", "sparse": "f", "large": "i"}
        assert {name: kind for name, kind in kinds.items() if kind in "if"} == numbers
        assert frame["price"].tolist() == [19.9, 5.0, -0.5]
        assert frame["large"].tolist() == [2**63 - 1, -1, 0]
        assert frame["sparse"].isna().tolist() == [False, True, False]
        assert frame["code"].tolist() == ["007", "010", "1"]
        assert frame["version"].tolist() == ["3.9", "3.10", "3.11"]
        # With other hits, a column may have more than numbers, or values that floats do not keep.
        frame = coil.to_frame(index.search("river", k=4, by="dense"))
        assert set(frame["year"]) == {"2020", "1999", "0", "soon"}
        assert set(frame["large"].dropna()) == {"9223372036854775807", "-1", "0"}


@given(
    st.lists(
        st.one_of(st.from_regex(r"-?[0-9]{1,22}(\.[0-9]{1,4})?", fullmatch=True), st.just("")), max_size=5
    )
)
def test_strings_become_numbers_only_if_they_can_be_written_again(values: list[str]) -> None:
    found = _numbers(values)
    if found == values:
        return
    written = [(value, number) for value, number in zip(values, found, strict=True) if value]
    assert all(number is None for value, number in zip(values, found, strict=True) if not value)
    shown = [
        [str(number) for _, number in written],
        [f"{number:.15g}" for _, number in written],
        *([f"{number:.{places}f}" for _, number in written] for places in range(1, 5)),
    ]
    assert [value for value, _ in written] in shown


def test_hits_become_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river", "score": 3}, {"id": "b", "text": "river bank", "year": 2020}])
        hits = index.search("river", k=5)
        frame = coil.to_frame(hits)
        assert list(frame.columns)[:5] == ["rank", "doc_id", "score", "share", "text"]
        assert set(frame.columns[5:]) == {"fields.score", "year"}
        assert frame["doc_id"].tolist() == [hit.doc_id for hit in hits]
        assert frame["score"].tolist() == [hit.score for hit in hits]
        assert frame.set_index("doc_id").loc["a", "fields.score"] == 3
        assert frame.set_index("doc_id").loc["b", "text"] == "river bank"
        assert list(coil.to_frame([]).columns) == ["rank", "doc_id", "score", "share", "text"]
        for wrong, reason in ((hits[0], "single hit"), ([hits], "a Hits among the hits")):
            with pytest.raises(InputError, match=reason):
                coil.to_frame(wrong)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "pandas", None)
        with pytest.raises(MissingExtra) as caught:
            coil.to_frame(hits)
        assert caught.value.remedy == "pip install 'coil-ir[pandas]'"
