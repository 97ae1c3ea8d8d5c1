"""Encoders: ONNX against PyTorch, order, bounded reading and odd texts."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coil.vectors.config import ModelConfig
from coil.vectors.encoder import WINDOW, batches_in_order, equal_batches, padded_length, windows
from coil.vectors.export import export_model, quantize
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.token_vectors import TokenVectors
from coil.vectors.torch_encoder import TorchEncoder
from tests.tiny import PROFILE, WEIGHED, difference, make_model, random_texts

# Every kind of language model, every shape, pooling and normalisation at least once.
COMBINATIONS = {
    "bert-full-mean-unit": ("bert", 8, 8, "mean", "unit"),
    "bert-dense-cls-layer": ("bert", 0, 8, "cls", "layer"),
    "bert-tok-1": ("bert", 1, 0, "cls", "none"),
    "distilbert-full-cls-none": ("distilbert", 8, 8, "cls", "none"),
    "distilbert-tok": ("distilbert", 8, 0, "cls", "none"),
    "mpnet-full-mean-layer": ("mpnet", 8, 8, "mean", "layer"),
    "mpnet-dense-mean-unit": ("mpnet", 0, 8, "mean", "unit"),
    "roberta-full-cls-unit": ("roberta", 8, 8, "cls", "unit"),
    "roberta-dense-mean-none": ("roberta", 0, 8, "mean", "none"),
}


def cosine(first: list[TokenVectors], second: list[TokenVectors]) -> float:
    """The mean cosine over all tokens."""
    a, b = (np.concatenate([t.vectors for t in texts]) for texts in (first, second))
    return float(np.mean((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One exported model folder for each combination."""
    root = tmp_path_factory.mktemp("models")
    folders = {}
    for name, (kind, n_t, n_c, pooling, norm) in COMBINATIONS.items():
        config = ModelConfig(n_t, n_c, pooling, norm, PROFILE)  # type: ignore[arg-type]
        folders[name] = make_model(root / name, config, kind)
        export_model(folders[name])
    return folders


@pytest.fixture(scope="module")
def encoder(full: Path) -> OnnxEncoder:
    return OnnxEncoder(full, precision="fp32", threads=1)


# ---- ONNX against PyTorch


@pytest.mark.parametrize("name", COMBINATIONS)
def test_onnx_equals_pytorch(models: dict[str, Path], name: str) -> None:
    texts = [*random_texts(12), "", "bank"]
    torch = list(TorchEncoder(models[name]).encode_documents(texts))
    onnx = list(OnnxEncoder(models[name], precision="fp32", threads=1).encode_documents(texts))
    assert difference(torch, onnx) < 1e-4
    _, n_t, n_c, _, _ = COMBINATIONS[name]
    for text in onnx:
        assert text.vectors.shape == (len(text), n_t)
        assert (
            (text.sentence is None) if n_c == 0 else text.sentence is not None and len(text.sentence) == n_c
        )


@pytest.mark.parametrize("name", [name for name, shape in COMBINATIONS.items() if shape[1] > 1])
def test_int8_is_close_to_fp32(models: dict[str, Path], name: str) -> None:
    texts = random_texts(12, seed=1)
    exact, rounded = (
        list(OnnxEncoder(models[name], precision=p, threads=1).encode_documents(texts))
        for p in ("fp32", "int8")
    )
    assert cosine(exact, rounded) > 0.995
    assert difference(exact, rounded) > 0  # otherwise nothing was quantised


def test_int8_is_close_to_fp32_where_the_layers_decide(sharp: Path) -> None:
    texts = random_texts(12, seed=1)
    exact, rounded = (
        list(OnnxEncoder(sharp, precision=p, threads=1).encode_documents(texts)) for p in ("fp32", "int8")
    )
    assert cosine(exact, rounded) > 0.99


def test_int8_is_preferred_and_smaller_where_it_counts(full: Path, copy: Path) -> None:
    from onnx import TensorProto, load

    assert OnnxEncoder(full).fingerprint == OnnxEncoder(full, precision="int8").fingerprint
    (copy / "model.int8.onnx").unlink()
    assert OnnxEncoder(copy).fingerprint == OnnxEncoder(full, precision="fp32").fingerprint
    weights = load(full / "model.int8.onnx").graph.initializer
    stored = {kind: sum(np.prod(w.dims) for w in weights if w.data_type == kind) for kind in (1, 3)}
    assert TensorProto.INT8 == 3
    assert stored[3] > 4 * stored[1]
    assert not any(w.data_location == TensorProto.EXTERNAL for w in weights)


def test_widths_are_fixed_and_sizes_open(models: dict[str, Path]) -> None:
    import onnxruntime

    for name, (_, n_t, n_c, pooling, _) in COMBINATIONS.items():
        for file in ("model.onnx", "model.int8.onnx"):
            session = onnxruntime.InferenceSession(
                str(models[name] / file), providers=["CPUExecutionProvider"]
            )
            shapes = {value.name: value.shape for value in (*session.get_inputs(), *session.get_outputs())}
            expected: dict[str, list[object]] = {
                "input_ids": ["batch", "length"],
                "attention_mask": ["batch", "length"],
            }
            if n_t:
                expected["token_vectors"] = ["batch", "length", n_t]
            if n_c:
                expected["sentence_vector"] = ["batch", n_c]
            if n_c and pooling == "mean":  # what explanations take a sentence vector apart with
                expected["hidden"] = ["batch", "length", 32]
            assert shapes == expected


def test_quantised_zeros_stay_zeros(tmp_path: Path) -> None:
    """0/0 inside the int8 graph must not leak: a token of zeros times any matrix is zero."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "one product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(
        quantize(model, keep=[]).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    x[1] = 0
    (y,) = session.run(["y"], {"x": x})
    assert (y[1] == 0).all()
    np.testing.assert_allclose(y, x @ weight, atol=0.2)
    # The second largest products stay exact even where pairs are added in sixteen bits.
    (matrix,) = [i for i in quantize(model, keep=[]).graph.initializer if i.name == "w/int8"]
    assert np.abs(numpy_helper.to_array(matrix).astype(int)).max() == 64


# ---- order, batches, streaming


def test_results_come_in_input_order(encoder: OnnxEncoder) -> None:
    texts = random_texts(60, seed=2)
    one_by_one = [next(encoder.encode_documents([text])) for text in texts]
    assert difference(list(encoder.encode_documents(texts)), one_by_one) < 1e-4


@pytest.mark.parametrize(
    ("batch_tokens", "bucketed"), [(1, True), (100, True), (100, False), (100_000, False)]
)
def test_batches_do_not_change_vectors(
    full: Path, encoder: OnnxEncoder, batch_tokens: int, bucketed: bool
) -> None:
    texts = random_texts(40, seed=3)
    other = OnnxEncoder(full, "fp32", threads=1, batch_tokens=batch_tokens, bucketed=bucketed)
    assert difference(list(encoder.encode_documents(texts)), list(other.encode_documents(texts))) < 1e-4


def test_batches_cover_every_text_once_and_respect_the_budget() -> None:
    lengths = [padded_length(n, 64) for n in np.random.default_rng(4).integers(2, 64, size=500).tolist()]
    padded = {}
    for cut in (equal_batches, batches_in_order):
        groups = list(cut(lengths, 256))
        assert sorted(place for group in groups for place in group) == list(range(500))
        assert all(len(group) == 1 or max(lengths[i] for i in group) * len(group) <= 256 for group in groups)
        padded[cut] = sum(max(lengths[i] for i in group) * len(group) for group in groups)
        assert list(cut([], 256)) == []
        assert list(cut([1000], 256)) == [[0]]
    assert padded[equal_batches] == sum(lengths) < padded[batches_in_order]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_text_has_the_same_vectors_in_any_batch_on_any_threads(sharp: Path, precision: str) -> None:
    """To the last bit: an index does not depend on how its documents came in."""
    texts = random_texts(60, seed=8)
    first = list(OnnxEncoder(sharp, precision, threads=1).encode_documents(texts))  # type: ignore[arg-type]
    for threads, batch_tokens in ((1, 1), (2, 100_000)):
        other = OnnxEncoder(sharp, precision, threads=threads, batch_tokens=batch_tokens)  # type: ignore[arg-type]
        again = list(other.encode_documents(reversed(texts)))[::-1]
        for a, b in zip(first, again, strict=True):
            assert np.array_equal(a.vectors, b.vectors)
            assert np.array_equal(a.sentence, b.sentence)  # type: ignore[arg-type]


def test_reading_ahead_is_bounded(encoder: OnnxEncoder) -> None:
    pulled = 0

    def endless() -> Iterator[str]:
        nonlocal pulled
        while True:
            pulled += 1
            yield "bank"

    results = encoder.encode_documents(endless())
    assert pulled == 0
    for returned in range(1, WINDOW + 3):
        next(results)
        assert pulled - returned < WINDOW
    results.close()  # type: ignore[attr-defined]


def test_windows_are_bounded_in_characters_too() -> None:
    long = "x" * 1_500_000
    assert [len(window) for window in windows([long] * 7)] == [3, 3, 1]
    assert [len(window) for window in windows([""] * (WINDOW + 1))] == [WINDOW, 1]
    assert list(windows([])) == []


def test_no_texts(encoder: OnnxEncoder) -> None:
    assert list(encoder.encode_documents([])) == []
    assert list(encoder.encode_queries(iter([]))) == []


# ---- odd texts


@pytest.mark.parametrize("text", ["", " \t\n\u3000 ", "\u200b"])
def test_texts_without_tokens_have_a_sentence_vector_only(encoder: OnnxEncoder, text: str) -> None:
    (found,) = encoder.encode_documents([text])
    assert found.vectors.shape == (len(found), 8)
    assert len(found) == 0
    assert found.spans.shape == (0, 2)
    assert found.sentence is not None
    assert np.isfinite(found.sentence).all()


@pytest.mark.parametrize(
    "text",
    ["😀🎉👩‍👩‍👧", "bank\x00river\x00", "bank \ud800 river \udfff", "ﬁ ½ é e\u0301 \u202e abc", "x" * 5000],
)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_odd_texts_give_finite_vectors(full: Path, text: str, precision: str) -> None:
    (found,) = OnnxEncoder(full, precision, threads=1).encode_documents([text])  # type: ignore[arg-type]
    assert np.isfinite(found.vectors).all()
    assert len(found) >= 1
    assert (found.spans >= 0).all()
    assert (found.spans <= len(text)).all()


def test_a_very_long_document_is_cut_and_counted(encoder: OnnxEncoder) -> None:
    (found,) = encoder.encode_documents(["bank river " * 50_000])
    assert len(found) == PROFILE.document_length - 2
    assert found.dropped == 100_000 - len(found)
    (query,) = encoder.encode_queries(["bank river " * 50])
    assert len(query) == PROFILE.query_length - 2
    assert query.dropped == 100 - len(query)


def test_spans_point_at_the_tokens(encoder: OnnxEncoder) -> None:
    text = "The BANK, near the river\n was \ud800 steep; 😀 naïve running"
    (found,) = encoder.encode_documents([text])
    for key, (start, end) in zip(found.keys, found.spans, strict=True):
        assert key is not None
        token = key.removeprefix("##")
        covered = text[start:end].lower()
        assert token in ("[UNK]", covered) or (covered, token) == ("ï", "i")
    words = {text[start:end] for start, end in found.spans}
    assert {"BANK", "river", "steep", "running", ","} <= words


def test_special_tokens_are_never_among_the_tokens(models: dict[str, Path]) -> None:
    for folder in models.values():
        tested = OnnxEncoder(folder, "fp32", threads=1)
        special = {tested.tokenizer.token(token_id) for token_id in tested.tokenizer.special_ids}
        for found in tested.encode_documents([*random_texts(5, seed=5), ""]):
            assert not special & set(found.keys)
            np.testing.assert_array_equal(found.positions, np.arange(1, len(found) + 1))


def test_special_tokens_written_in_a_text_are_text(encoder: OnnxEncoder) -> None:
    (found,) = encoder.encode_documents(["river [SEP] bank [PAD]"])
    assert found.keys == (
        "river",
        "[UNK]",
        "s",
        "##e",
        "##p",
        "[UNK]",
        "bank",
        "[UNK]",
        "p",
        "##a",
        "##d",
        "[UNK]",
    )


def test_by_word_a_mention_is_a_whole_word(tmp_path: Path) -> None:
    """Its vector is that of its first piece, its characters are all of it, and its list that of its stem."""
    folder = make_model(tmp_path / "words", ModelConfig(8, 8, "mean", "unit", WEIGHED))
    by_word = TorchEncoder(folder)
    text = "The Xyzzy, running banks"
    (found,) = by_word.encode_documents([text])
    assert found.keys == (None, "xyzzi", None, "run", "bank")
    assert [text[start:end] for start, end in found.spans] == ["The", "Xyzzy", ",", "running", "banks"]
    assert found.positions.tolist() == [1, 2, 7, 8, 9]
    (pieces,) = TorchEncoder(_by_piece(folder)).encode_documents([text])
    np.testing.assert_array_equal(found.vectors, pieces.vectors[found.positions - 1])


def _by_piece(folder: Path) -> Path:
    """The same weights with every piece as a mention."""
    replace(ModelConfig.load(folder), profile=PROFILE).save(folder)
    return folder


# ---- what is loaded


def test_searching_loads_no_torch(full: Path) -> None:
    script = (
        "import sys, coil; assert 'numpy' not in sys.modules, 'numpy'\n"
        "found = next(coil.OnnxEncoder(sys.argv[1]).encode_queries(['river bank'])); assert len(found) == 2\n"
        "heavy = {'torch', 'transformers', 'onnx'} & set(sys.modules); assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(full)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_batches_are_encoded_on_several_threads(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at the same time as there are threads, and no more."""
    encoder = OnnxEncoder(full, precision="fp32", threads=3, batch_tokens=1)
    forward, together, running, most = encoder._forward, threading.Barrier(3, timeout=30), set(), 0

    def meet(*batch: Any) -> Any:
        nonlocal most
        running.add(threading.get_ident())
        most = max(most, len(running))
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait()  # three batches are under way, or this waits until it breaks
        running.discard(threading.get_ident())
        return forward(*batch)

    monkeypatch.setattr(encoder, "_forward", meet)
    texts = random_texts(6, seed=3)
    assert len(list(encoder.encode_documents(texts))) == 6
    assert not together.broken
    assert most == 3


def test_an_error_in_one_batch_is_raised_and_ends_the_others(
    full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = OnnxEncoder(full, precision="fp32", threads=2, batch_tokens=1)
    calls = 0

    def fail(*batch: Any) -> Any:
        nonlocal calls
        calls += 1
        raise MemoryError("no room for a batch")

    monkeypatch.setattr(encoder, "_forward", fail)
    before = threading.active_count()
    with pytest.raises(MemoryError, match="no room"):
        list(encoder.encode_documents(random_texts(40, seed=4)))
    assert calls <= 2
    assert threading.active_count() == before


def test_encoding_goes_on_where_no_thread_can_be_started(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = random_texts(20, seed=5)
    expected = list(OnnxEncoder(full, precision="fp32", threads=1).encode_documents(texts))

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    encoder = OnnxEncoder(full, precision="fp32", threads=4, batch_tokens=1)
    for one, other in zip(expected, encoder.encode_documents(texts), strict=True):
        assert np.array_equal(one.vectors, other.vectors)


def test_a_model_that_is_replaced_while_it_is_open_gives_the_same_vectors(
    full: Path, sharp: Path, tmp_path: Path
) -> None:
    """Several batches need a second session, which must not be of another model."""
    folder = shutil.copytree(full, tmp_path / "model")
    texts = random_texts(20, seed=6)
    encoder = OnnxEncoder(folder, "fp32", threads=2, batch_tokens=1)
    expected = list(OnnxEncoder(full, "fp32", threads=1).encode_documents(texts))
    shutil.copyfile(sharp / "model.onnx", folder / "other.onnx")
    (folder / "other.onnx").replace(folder / "model.onnx")
    assert difference(expected, list(encoder.encode_documents(texts))) < 1e-6
    (folder / "model.onnx").unlink()
    assert difference(expected, list(encoder.encode_documents(texts))) < 1e-6


def test_one_batch_uses_all_threads_and_several_one_each(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = OnnxEncoder(full, "fp32", threads=2, batch_tokens=1)
    used: list[int] = []
    find = encoder._session

    def note(threads: int) -> Any:
        used.append(threads)
        return find(threads)

    monkeypatch.setattr(encoder, "_session", note)
    [*encoder.encode_queries(["one two"])]
    assert used == [2]
    [*encoder.encode_documents(random_texts(12, seed=7))]
    assert used[1:7] == [1] * 6  # the last ones may find themselves alone
    [*encoder.encode_queries(["three"])]
    assert used[-1] == 2
