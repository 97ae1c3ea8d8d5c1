"""Sentence parts: what each sentence adds through the sentence vector, exactly, with a language model."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.explanations.explainer import Explainer
from coil.explanations.sentence_parts import ROUNDING, START_AND_END, sentence_spans
from coil.indexes.opening import create
from coil.tokens.tokenizer import PIECE
from coil.vectors.config import ModelConfig
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.torch_encoder import TorchEncoder
from tests.tiny import WEIGHED, make_model

TEXT = "The river bank was steep. Money in the bank! A kubernetes cabinet?\n\nThe airport lounge is open"


@pytest.mark.parametrize("norm", ["unit", "none"])
def test_the_terms_of_tokens_sum_to_the_sentence_vector(tmp_path: Path, norm: Any) -> None:
    from coil.vectors.export import export_model

    folder = make_model(tmp_path / "model", ModelConfig(8, 12, "mean", norm, WEIGHED))
    export_model(folder)
    for encoder in (OnnxEncoder(folder, "fp32"), OnnxEncoder(folder, "int8"), TorchEncoder(folder)):
        for text in (TEXT, "river", "river " * 200):
            [vectors] = encoder.encode_documents([text])
            found = encoder.sentence_terms(text)
            assert found is not None
            spans, terms, rest = found
            assert len(spans) == len(terms)
            assert vectors.sentence is not None
            np.testing.assert_allclose(terms.sum(axis=0) + rest, vectors.sentence, atol=1e-5)


@pytest.mark.parametrize(("pooling", "norm"), [("cls", "none"), ("mean", "layer")])
def test_a_model_that_is_no_mean_does_not_tell(tmp_path: Path, pooling: Any, norm: Any) -> None:
    folder = make_model(tmp_path / "model", ModelConfig(8, 12, pooling, norm, WEIGHED))
    assert TorchEncoder(folder).sentence_terms(TEXT) is None


def test_the_parts_of_an_explanation_sum_to_its_sentence_part(full: Path, tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", model=str(full)) as index:
        index.add([{"id": "a", "text": TEXT}, {"id": "b", "text": "open a loan account"}])
        for doc_id in ("a", "b"):
            explained = index.explain("river kubernetes open", doc_id)
            assert explained.sentence is not None
            parts = explained.sentence_parts
            assert sum(part.contribution for part in parts) == pytest.approx(explained.sentence, abs=1e-9)
            named = [part for part in parts if part.span is None]
            assert {part.text for part in named} <= {START_AND_END, ROUNDING}
            for part in parts:
                if part.span is not None:
                    written = index.document(doc_id).text[slice(*part.span)]
                    assert part.text == " ".join(written.split())
            rounding = [part.contribution for part in named if part.text == ROUNDING]
            assert all(abs(value) < 0.05 for value in rounding)  # that of int8
        assert [part.text for part in index.explain("river", "a").sentence_parts][:2] == [
            "The river bank was steep.",
            "Money in the bank!",
        ]
        assert index.explain("river", "a", by="bm25").sentence_parts == ()


@given(st.text(alphabet="ab .!?\n。", max_size=60))
def test_sentences_cover_a_text_without_overlap(text: str) -> None:
    spans = sentence_spans(text)
    assert "".join(text[start:end] for start, end in spans) == text


_WRITTEN_OUT = re.compile(r"(?<=[.!?。！？])[\"'”’)\]]*\s+|\s*\n\s*\n\s*|[。！？]")


@given(st.text(alphabet="ab .!?\n\t。\"')", max_size=40))
def test_sentences_end_where_the_rule_says(text: str) -> None:
    """The rule as one pattern, which takes the square of the time for a long run of white space."""
    expected, begin = [], 0
    for match in _WRITTEN_OUT.finditer(text):
        if text[begin : match.end()].strip():
            expected.append((begin, match.end()))
            begin = match.end()
    if text[begin:].strip() or not expected:
        expected.append((begin, len(text)))
    else:
        expected[-1] = (expected[-1][0], len(text))
    assert sentence_spans(text) == expected


@pytest.mark.parametrize("run", [" ", "\n", " \n", ".", "'", '."', ". '", "。", "。\n\n", "\u200b\n\n"])
def test_any_long_run_of_characters_is_split_in_a_moment(run: str) -> None:
    began = time.process_time()
    text = "kiwi" + run * (1_000_000 // len(run)) + "tart"
    spans = sentence_spans(text)
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    assert time.process_time() - began < 20  # the square of a million steps takes hours


def test_sentences_without_tokens_join_their_neighbours(full: Path, tmp_path: Path) -> None:
    hidden = "\u200b\n\n"  # a sentence that nobody sees and the model does not read
    text = f"{hidden}A river. {hidden * 3}Open money!\n\n{hidden * 2}"
    with create(tmp_path / "a.coil", model=str(full)) as index:
        index.add([{"id": "a", "text": text}])
        explained = index.explain("river open", "a")
    assert explained.sentence is not None
    parts = [part for part in explained.sentence_parts if part.span is not None]
    assert [text[slice(*part.span)] for part in parts if part.span] == [
        f"{hidden}A river. {hidden * 3}",
        f"Open money!\n\n{hidden * 2}",
    ]
    assert all(abs(part.contribution) > 0 for part in parts)
    total = sum(part.contribution for part in explained.sentence_parts)
    assert total == pytest.approx(explained.sentence, abs=1e-9)


def test_a_million_sentences_without_tokens_are_explained_in_a_moment(full: Path, tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", model=str(full)) as index:
        index.add([{"id": "a", "text": "river. " * 20 + "\u200b\n\n" * 300_000}])
        began = time.process_time()
        explained = index.explain("river", "a")
        seconds = time.process_time() - began
    assert len(explained.sentence_parts) < 30
    assert seconds < 8


def test_an_explanation_stops_when_it_is_told_to(full: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    calls = 0

    def go_on() -> None:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise Enough

    with create(tmp_path / "a.coil", model=str(full)) as index:
        index.add([{"id": "a", "text": "river. " + "\u200b\n\n" * 50_000}])
        with index.pinned() as reader, pytest.raises(Enough):
            Explainer(reader.searcher, "river").explain("a", go_on=go_on)


def test_a_truncated_text_is_explained_as_far_as_it_was_read(full: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    text = "river. " * 400_000
    calls = 0

    def go_on() -> None:
        nonlocal calls
        calls += 1

    def stop() -> None:
        nonlocal calls
        calls -= 1
        if calls == 0:
            raise Enough

    with create(tmp_path / "a.coil", model=str(full), long="truncate") as index:
        index.add([{"id": "a", "text": text}])
        explained = Explainer(index.searcher, "river").explain("a", go_on=go_on)
        assert calls > len(text) / (2 * PIECE)  # asked while the words that were not read are counted
        calls //= 2
        with pytest.raises(Enough):
            Explainer(index.searcher, "river").explain("a", go_on=stop)
    spans = [part.span for part in explained.sentence_parts if part.span is not None]
    assert spans[-1][1] == explained.chunk[1] < 1_000
    assert sum(part.contribution for part in explained.sentence_parts) == pytest.approx(explained.sentence)
