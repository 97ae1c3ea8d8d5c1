"""Texts that the authors' code has encoded are searched with the scores of the oracle."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.adapters.authors_checkpoint import import_checkpoint
from coil.adapters.authors_encoded import EncodedReader, EncodedTexts, number_of, read_offsets
from coil.adapters.authors_index import import_encoded
from coil.cli.main import run
from coil.errors import DuplicateId, InputError, OptionMismatch
from coil.indexes.index import Index
from coil.indexes.opening import open_index
from coil.scores import oracle
from coil.texts.values import Document
from coil.vectors.export import export_model
from coil.vectors.token_vectors import TokenVectors
from tests.authors_files import make_checkpoint, write_encoded
from tests.hash_encoder import HashEncoder
from tests.tiny import PROFILE, WEIGHED, random_texts

QUERIES = ["river bank", "money money loan", "the a of", "zzz"]


def encoder_of(n_t: int = 4, n_c: int = 3) -> HashEncoder:
    return HashEncoder(n_t, n_c, PROFILE)


def stored(vectors: TokenVectors, dtype: Any) -> TokenVectors:
    """As the files have it."""
    assert vectors.sentence is not None
    return replace(
        vectors,
        vectors=vectors.vectors.astype(dtype).astype(np.float32),
        sentence=vectors.sentence.astype(dtype).astype(np.float32),
    )


def imported(texts: dict[int, str], folder: Path, dtype: Any, precision: Any, splits: int) -> Index:
    """An index of texts that were encoded in several splits; the corpus comes in another order."""
    encoder = encoder_of()
    numbers = list(texts)
    for split in range(splits):
        some = numbers[split::splits]
        encoded = dict(zip(some, encoder.encode_documents([texts[n] for n in some]), strict=True))
        if encoded:
            write_encoded(folder / "encoded" / f"split{split:02d}", encoded, encoder, dtype)
    corpus = [Document(str(number), text) for number, text in sorted(texts.items())]
    counts = import_encoded(
        [folder / "encoded"], corpus, "tiny", folder / "a.coil", precision, encoder=encoder
    )
    assert (counts.documents, counts.not_encoded, counts.without_text, counts.different) == (
        len(texts), 0, 0, 0,
    )  # fmt: skip
    return open_index(folder / "a.coil", encoder=encoder)


def check_against_oracle(index: Index, texts: dict[int, str], dtype: Any) -> None:
    """Every query finds the oracle's documents, in its order, with its scores."""
    encoder = encoder_of()
    ordered = [texts[number] for number in sorted(texts)]
    documents = [stored(of, dtype) for of in encoder.encode_documents(ordered)]
    for query, vectors in zip(QUERIES, encoder.encode_queries(QUERIES), strict=True):
        expected = oracle.rank(vectors, documents, len(documents), PROFILE)
        found = index.search(query, k=len(documents))
        names = sorted(texts)
        assert {hit.doc_id for hit in found} == {str(names[ordinal]) for ordinal, _ in expected}
        for hit, (_, value) in zip(found, expected, strict=True):
            assert hit.score == pytest.approx(value, abs=2e-4)


@settings(max_examples=25, deadline=None)
@given(
    words=st.lists(
        st.lists(st.sampled_from("river bank money loan the a zyx".split()), min_size=1, max_size=8),
        min_size=1,
        max_size=7,
    ),
    order=st.randoms(use_true_random=False),
    form=st.sampled_from([(np.float32, "fp32"), (np.float16, "fp16"), (np.float16, "fp32")]),
    splits=st.integers(1, 3),
)
def test_scores_are_those_of_the_oracle(words: Any, order: Any, form: Any, splits: int) -> None:
    dtype, precision = form
    numbers = list(range(100, 100 + len(words)))
    order.shuffle(numbers)
    texts = {number: " ".join(of) for number, of in zip(numbers, words, strict=True)}
    with (
        tempfile.TemporaryDirectory() as folder,
        imported(texts, Path(folder), dtype, precision, splits) as index,
    ):
        check_against_oracle(index, texts, dtype)


def test_the_oracle_rejects_vectors_of_other_texts(tmp_path: Path) -> None:
    texts = {1: "river bank", 2: "money loan river"}
    with imported(texts, tmp_path, np.float32, "fp32", 1) as index, pytest.raises(AssertionError):
        check_against_oracle(index, {1: "river river bank", 2: "money loan river"}, np.float32)


def test_encoded_queries_score_without_their_texts(tmp_path: Path) -> None:
    texts = dict(enumerate(random_texts(20, 30, seed=4)))
    encoder = encoder_of()
    with imported(texts, tmp_path, np.float16, "fp16", 3) as index:
        queries = dict(enumerate(encoder.encode_queries(QUERIES), start=7))
        write_encoded(tmp_path / "queries", queries, encoder, np.float16)
        reader = EncodedReader(EncodedTexts([tmp_path / "queries"]), encoder)
        documents = [stored(of, np.float16) for of in encoder.encode_documents(texts.values())]
        with index.pinned() as still:
            for number, of_query in queries.items():
                found = still.searcher.rank(reader.vectors(number), 20)
                expected = oracle.rank(stored(of_query, np.float16), documents, 20, PROFILE)
                ids = [
                    document.doc_id for document in still.searcher.collection.fetch(found.ordinals.tolist())
                ]
                assert ids == [str(ordinal) for ordinal, _ in expected]
                assert [of.score for of in found] == pytest.approx([s for _, s in expected], abs=2e-4)


def test_hits_are_explained_from_the_vectors_that_came(tmp_path: Path) -> None:
    texts = {1: "bank river bank", 2: "money"}
    with imported(texts, tmp_path, np.float32, "fp32", 1) as index:
        [hit, *_] = index.search("bank bank river")
        explained = index.explain("bank bank river", "1")
        [own] = encoder_of().encode_documents([texts[1]])
        assert {match.document_span for match in explained.matches} <= {
            tuple(span) for span in own.spans.tolist()
        }
        assert explained.score == pytest.approx(hit.score, abs=1e-5)


def test_the_commands_from_a_checkpoint_to_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    model = tmp_path / "model"
    import_checkpoint(checkpoint, model, query_length=16, document_length=64)
    export_model(model, ["fp32"])
    from coil.vectors.torch_encoder import TorchEncoder

    encoder = TorchEncoder(model)
    texts = {3: "the bank of the river", 8: "money and loan", 9: "never in the corpus"}
    write_encoded(
        tmp_path / "encoded" / "split00",
        dict(zip(texts, encoder.encode_documents(texts.values()), strict=True)),
        encoder,
    )
    corpus = tmp_path / "docs.tsv"
    corpus.write_text("D3\tthe bank of the river\nD8\tmoney and loan\nD99\tnot encoded\nother\ttext\n")
    command = ["import-encoded", str(tmp_path / "encoded"), "--corpus", str(corpus), "--model", str(model)]
    command += ["--out", str(tmp_path / "a.coil"), "--precision", "fp32"]
    assert run(command) == 0
    shown = capsys.readouterr()
    assert "2 documents in" in shown.out
    assert "2 documents in the corpus but not encoded" in shown.err
    assert "1 text encoded but not in the corpus" in shown.err
    assert run(["search", str(tmp_path / "a.coil"), "river bank", "--json"]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [query] = encoder.encode_queries(["river bank"])
    [document] = encoder.encode_documents([texts[3]])
    expected = oracle.score(query, document, encoder.config.profile, oracle.CountedRows([document]))
    assert {hit["doc_id"]: hit["score"] for hit in hits}["D3"] == pytest.approx(expected, abs=1e-3)
    assert run(["explain", str(tmp_path / "a.coil"), "river bank", "D3"]) == 0
    assert run(command) == 1
    assert "already exists" in capsys.readouterr().err


def test_a_text_with_other_tokens_keeps_its_vectors(tmp_path: Path) -> None:
    encoder = encoder_of()
    texts = {number: f"river {'bank ' * (number % 5)}" for number in range(200)}
    write_encoded(
        tmp_path / "e", dict(zip(texts, encoder.encode_documents(texts.values()), strict=True)), encoder
    )
    corpus = [Document(str(n), "money" if n == 150 else text) for n, text in texts.items()]
    counts = import_encoded([tmp_path / "e"], corpus, "tiny", tmp_path / "a.coil", "fp32", encoder=encoder)
    assert (counts.documents, counts.different) == (200, 1)
    with open_index(tmp_path / "a.coil", encoder=encoder) as index:
        scores = {hit.doc_id: hit.score for hit in index.search("river", k=200)}
        assert scores["150"] == scores["145"]
    wrong = [Document(str(n), "money") for n in texts]
    with pytest.raises(InputError, match="100 of 100 texts do not match the encoded tokens"):
        import_encoded([tmp_path / "e"], wrong, "tiny", tmp_path / "b.coil", encoder=encoder)
    with pytest.raises(InputError, match="1 of 1 texts do not match"):
        import_encoded([tmp_path / "e"], wrong[:1], "tiny", tmp_path / "b.coil", encoder=encoder)
    with pytest.raises(InputError, match="none of the encoded texts"):
        import_encoded(
            [tmp_path / "e"], [Document("x", "river")], "tiny", tmp_path / "b.coil", encoder=encoder
        )
    assert [path.name for path in tmp_path.iterdir() if "b.coil" in path.name] == []


@pytest.mark.parametrize(
    ("doc_id", "number"), [("7", 7), ("D12", 12), ("007", 7), ("x7", None), ("", None), ("-1", None)]
)
def test_numbers_of_ids(doc_id: str, number: int | None) -> None:
    assert number_of(doc_id) == number


# ---- what is wrong with files


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def _save(name: str, value: Any) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / name, value)


def _pickle(value: Any) -> Callable[[Path], object]:
    return lambda folder: (folder / "offsets.pkl").write_bytes(pickle.dumps(value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "tok_reps.npy").unlink(), "has no tok_reps.npy"),
        (lambda f: (f / "cls_pids.npy").unlink(), "contains no encoded texts"),
        (lambda f: (f / "tok_reps.npy").write_bytes(b"nothing"), "not an array of numbers"),
        (_save("tok_pids.npy", np.array([_Harmful()], dtype=object)), "not an array of numbers"),
        (_save("tok_pids.npy", np.array([1, 1])), "2 mentions and 5 token vectors"),
        (_save("tok_pids.npy", np.array([1, 1, 2, 2, 77])), "contains numbers that are not in cls_pids.npy"),
        (_save("cls_reps.npy", np.zeros((2, 3), dtype=int)), "expected decimal numbers in 2"),
        (_save("cls_reps.npy", np.zeros(3)), "expected decimal numbers in 2"),
        (_save("cls_reps.npy", np.zeros((2, 5))), "the model's n_c is 3, but the encoded vectors are 5 wide"),
        (_save("tok_reps.npy", np.zeros((5, 9))), "the model's n_t is 4, but the encoded vectors are 9 wide"),
        (_save("tok_reps.npy", np.full((5, 4), np.inf)), "NaN or infinite"),
        (_save("cls_pids.npy", np.array([1, 1])), "duplicate id '1'"),
        (_pickle({5: (0, 3)}), "covers 3 mentions, but there are 5"),
        (_pickle({5: (0, 5), 6: (1, 4)}), "covers 9 mentions"),
        (_pickle({5: (0, 6)}), "token 5 has mentions 0 to 6, but there are 5"),
        (_pickle({5: (-1, 5)}), "token 5 has mentions"),
        (_pickle({5_000_000: (0, 5)}), "not in the vocabulary"),
        (_pickle({3: (0, 5)}), r"encoded with \[SEP\]"),
        (_pickle({5: [0, 5]}), "more than whole numbers"),
        (_pickle({"a": (0, 5)}), "more than whole numbers"),
        (_pickle((1, 2)), "does not contain a dictionary"),
        (_pickle(_Harmful()), "could execute code"),
        (_pickle({5: _Harmful()}), "could execute code"),
        (_pickle({5: np.int64(3)}), "could execute code"),
        (lambda f: (f / "offsets.pkl").write_bytes(b"\x80\x05}("), "not a pickled dictionary"),
        (lambda f: (f / "offsets.pkl").write_bytes(b"\x80\x05u."), "not a pickled dictionary"),
        (lambda f: (f / "offsets.pkl").write_bytes(b""), "not a pickled dictionary"),
    ],
)
def test_files_that_lie_are_refused(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    encoder = encoder_of()
    texts = {1: "river bank money", 2: "money loan"}
    folder = write_encoded(
        tmp_path / "encoded", dict(zip(texts, encoder.encode_documents(texts.values()), strict=True)), encoder
    )
    shutil.copytree(folder, tmp_path / "good")
    change(folder)
    corpus = [Document(str(number), text) for number, text in texts.items()]
    with pytest.raises((InputError, OptionMismatch, DuplicateId), match=message):
        import_encoded([folder], corpus, "tiny", tmp_path / "a.coil", encoder=encoder)
    assert not list(tmp_path.glob("*.coil"))


def test_offsets_of_every_pickle_protocol_are_read(tmp_path: Path) -> None:
    offsets = {token: (3 * token, 3) for token in [*range(0, 3000, 7), 70_000, 1 << 20]}
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "offsets.pkl").write_bytes(pickle.dumps(offsets, protocol=protocol))
        assert read_offsets(tmp_path / "offsets.pkl") == offsets


def test_places_and_models_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        EncodedTexts([tmp_path / "none"])
    with pytest.raises(InputError, match="there are no encoded texts"):
        EncodedTexts([])
    for number, width in ((1, 4), (2, 5)):
        [vectors] = encoder_of(width).encode_documents(["river"])
        write_encoded(tmp_path / f"split{number}", {number: vectors}, encoder_of(width))
    with pytest.raises(InputError, match="vectors of different widths"):
        EncodedTexts([tmp_path])
    with pytest.raises(OptionMismatch, match="does not have the paper's scoring profile"):
        EncodedReader(EncodedTexts([tmp_path / "split1"]), HashEncoder(4, 3, WEIGHED))
    with pytest.raises(InputError, match="no text has the number 5"):
        EncodedTexts([tmp_path / "split1"]).text(5)
