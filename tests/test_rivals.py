"""ColBERT, cross-encoder, term weights and document expansion as systems: index, search, rerank, fit."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import (
    CoilError,
    DamagedSegment,
    InputError,
    MissingIndex,
    MissingModelFile,
    ModelError,
    OptionMismatch,
    OutputError,
    WrongShape,
)
from coil.systems import max_sim_index
from coil.systems.colbert import ColBert
from coil.systems.colbert_encoder import ColBertEncoder
from coil.systems.cross_encoder import CrossEncoderReranker
from coil.systems.deepct import TermWeights
from coil.systems.doct5query import DocT5Query
from coil.systems.max_sim_index import MaxSimIndex, write_vectors
from coil.systems.query_sampling import Sampler, Sampling
from coil.systems.registry import make_system
from coil.systems.system import Reranker, Retriever, Trainable, TrainingData
from coil.systems.written_queries import WrittenQueries
from coil.texts.values import Document, Query
from coil.training.options import PRESETS
from coil.vectors.config import ModelConfig
from coil.vectors.cross_encoder import CrossEncoder
from tests.late_interaction import max_sim
from tests.tiny import WORDS, random_texts
from tests.training_data import TINY

RECIPE = replace(TINY, steps=40, queries=16, lr=2e-3, validation_queries=0)
KINDS = ["colbert", "cross-encoder", "doct5query", "deepct"]


@pytest.fixture(scope="module")
def learnable(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A task that can be learned from few pairs: a passage is asked for by its first words."""
    folder, rng = tmp_path_factory.mktemp("task"), random.Random(3)
    path = folder / "task.jsonl"
    with path.open("w") as file:
        for _ in range(64):
            words = [rng.choice(WORDS) for _ in range(8)]
            file.write(json.dumps({"query": " ".join(words[:3]), "positive": " ".join(words)}) + "\n")
    return [path]


@pytest.fixture(scope="module")
def fitted(base: Path, learnable: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One trained model of each kind."""
    folder = tmp_path_factory.mktemp("fitted")
    for kind in KINDS:
        system = make_system(kind, {"n_t": 8, "fill": 8} if kind == "colbert" else {})
        assert isinstance(system, Trainable)
        (folder / kind).mkdir()
        steps = 300 if kind == "doct5query" else 40
        rate = 3e-3 if kind == "doct5query" else 2e-3
        recipe = replace(RECIPE, steps=steps, lr=rate)
        system.fit(TrainingData(learnable, str(base), recipe=recipe, device="cpu"), folder / kind)
    return folder


def documents(n: int = 40, seed: int = 1) -> list[Document]:
    return [Document(f"d{i}", text) for i, text in enumerate(random_texts(n, 40, seed))]


def queries(n: int = 5, seed: int = 2) -> list[Query]:
    return [Query(f"q{i}", text) for i, text in enumerate(random_texts(n, 9, seed))]


# The protocol


@pytest.mark.parametrize("kind", KINDS)
def test_every_rival_is_registered_and_trainable(kind: str) -> None:
    system = make_system(kind, {})
    assert isinstance(system, Trainable)
    assert isinstance(system, Reranker if kind == "cross-encoder" else Retriever)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_recipe_differs_only_in_the_shape_of_the_model(kind: str, preset: str) -> None:
    """What all systems share is the same for each: steps, batches, rates, lengths and seed."""
    shared = PRESETS[preset]
    made = make_system(kind, {}).recipe(shared)  # type: ignore[union-attr]
    for name in (
        "steps", "epochs", "queries", "hard_negatives", "lr", "head_lr", "warmup", "weight_decay", "clip",
        "query_length", "document_length", "lengths", "seed", "freeze", "dropout", "one_source", "spans",
    ):  # fmt: skip
        assert getattr(made, name) == getattr(shared, name), name


@pytest.mark.parametrize("kind", ["colbert", "cross-encoder", "doct5query"])
def test_a_model_that_is_missing_or_of_another_kind_is_named(kind: str, base: Path, tmp_path: Path) -> None:
    def use(model: str | None, out: Path) -> None:
        system = make_system(kind, {}, model)
        if isinstance(system, Retriever):
            out.mkdir()
            system.index(documents(2), out)
        else:
            assert isinstance(system, Reranker)
            list(system.rerank(queries(1), {"q0": ["d0"]}, {"d0": documents(1)[0]}))

    with pytest.raises(MissingModelFile, match="has no model"):
        use(None, tmp_path / "a")
    with pytest.raises(MissingModelFile, match="not found"):
        use(str(tmp_path / "nowhere"), tmp_path / "b")
    with pytest.raises(ModelError, match="not a"):
        use(str(base), tmp_path / "c")


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_named(fitted: Path, device: str, tmp_path: Path) -> None:
    if torch.cuda.is_available() and device.startswith("cuda"):
        device = "abacus"
    with pytest.raises(OptionMismatch, match=r"unknown device|no CUDA device"):
        ColBert(model=str(fitted / "colbert"), device=device).index(documents(1), tmp_path)


# ColBERT


def test_colbert_ranks_as_the_loops_do(fitted: Path, tmp_path: Path) -> None:
    """Every document by MaxSim over the vectors that are stored."""
    system = ColBert(model=str(fitted / "colbert"))
    texts, asked = [*documents(), Document("empty", " "), Document("twin", documents()[3].text)], queries()
    system.index(iter(texts), tmp_path)
    encoder = ColBertEncoder(fitted / "colbert", "cpu")
    stored = {
        doc_id: vectors.astype(np.float16).astype(np.float32)
        for doc_id, vectors in encoder.encode_documents(texts[:40] + texts[41:])
    }
    for query, answer in zip(asked, system.search(asked, 15, tmp_path), strict=True):
        vectors = encoder.encode_query(query.text)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
        assert len(vectors) >= 8  # filled up
        scores = {doc_id: max_sim(vectors, of_text) for doc_id, of_text in stored.items()}
        expected = sorted(scores, key=lambda doc_id: -scores[doc_id])[:15]
        assert answer.query_id == query.query_id
        np.testing.assert_allclose(answer.scores, [scores[d] for d in answer.doc_ids], atol=1e-4)
        np.testing.assert_allclose(answer.scores, [scores[d] for d in expected], atol=1e-4)
        assert set(answer.parts_ms) == {"encode", "search"}
    assert "empty" not in MaxSimIndex.open(tmp_path).doc_ids


def test_equal_documents_stay_in_order(fitted: Path, tmp_path: Path) -> None:
    system = ColBert(model=str(fitted / "colbert"))
    same = [Document(f"d{i}", "money in the bank") for i in (5, 3, 9)]
    system.index(iter([*same, Document("other", "steep river")]), tmp_path)
    [answer] = system.search([Query("q", "money bank")], 10, tmp_path)
    assert answer.doc_ids[:3] == ["d5", "d3", "d9"]
    assert len(answer.doc_ids) == 4  # a k above the collection gives all of it


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=9),
    tokens=st.integers(1, 4),
    block=st.integers(1, 12),
)
def test_stored_vectors_are_scored_as_the_loops_do(
    tmp_path_factory: pytest.TempPathFactory, seed: int, counts: list[int], tokens: int, block: int
) -> None:
    """Whatever the blocks: all documents, those without vectors too, with ties (whole numbers)."""
    rng = np.random.default_rng(seed)
    vectors = [rng.integers(-3, 4, (n, 2)).astype(np.float32) for n in counts]
    query = rng.integers(-3, 4, (tokens, 2)).astype(np.float32)
    folder = tmp_path_factory.mktemp("vectors")
    write_vectors(folder, ((str(i), v) for i, v in enumerate(vectors)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(max_sim_index, "BLOCK", block)
        scores = MaxSimIndex.open(folder).scores(query)
    assert scores.tolist() == [max_sim(query, v) for v in vectors]


def test_a_damaged_or_foreign_index_is_refused(fitted: Path, tmp_path: Path) -> None:
    system = ColBert(model=str(fitted / "colbert"))
    with pytest.raises(MissingIndex, match="not a finished ColBERT index"):
        list(system.search(queries(), 5, tmp_path))
    system.index(documents(), tmp_path)
    for name, damage in {
        "vectors.fp16": lambda path: path.write_bytes(path.read_bytes()[:-2]),
        "starts.npy": lambda path: np.save(path, np.arange(41)[::-1]),
        "doc_ids.json": lambda path: path.write_text('["d0"]'),
        "shape.json": lambda path: path.write_text("{"),
    }.items():
        copy = Path(shutil.copytree(tmp_path, tmp_path.with_name(f"damaged-{name}")))
        damage(copy / name)
        with pytest.raises(DamagedSegment):
            list(system.search(queries(), 5, copy))
        shutil.rmtree(copy)
    narrow = tmp_path.with_name("narrow")
    narrow.mkdir()
    write_vectors(narrow, [("a", np.ones((2, 3), np.float32))])
    with pytest.raises(WrongShape, match="width 3"):
        list(system.search(queries(), 5, narrow))


# Cross-encoder


def test_a_cross_encoder_reorders_candidates_by_its_score(fitted: Path) -> None:
    """Against the model itself, one pair at a time, with the ids written out by hand."""
    system = CrossEncoderReranker(model=str(fitted / "cross-encoder"))
    texts = {d.doc_id: d for d in documents()}
    asked = queries()
    candidates = {q.query_id: random.Random(i).sample(list(texts), 12) for i, q in enumerate(asked)}
    candidates["q1"] = []
    model = CrossEncoder.from_pretrained(fitted / "cross-encoder").eval()
    tokenizer = ColBertEncoder(fitted / "colbert", "cpu")._tokenizer
    answers = list(system.rerank(asked, candidates, texts))
    assert [a.query_id for a in answers] == [q.query_id for q in asked]
    assert answers[1].doc_ids == []
    assert set(answers[0].parts_ms) == {"rerank"}
    for query, answer in zip(asked, answers, strict=True):
        assert sorted(answer.doc_ids) == sorted(candidates[query.query_id])
        assert answer.scores == sorted(answer.scores, reverse=True)
        for doc_id, score in zip(answer.doc_ids, answer.scores, strict=True):
            [q], [d] = tokenizer.cut([query.text], 16), tokenizer.cut([texts[doc_id].text], 62)
            ids = torch.tensor([[*q.input_ids.tolist(), *d.input_ids.tolist()[1:]]])
            types = torch.tensor([[0] * len(q) + [1] * (len(d) - 1)])
            hidden = model.backbone(input_ids=ids, token_type_ids=types).last_hidden_state
            assert score == pytest.approx(float(model.score(hidden[:, 0]).detach()), abs=1e-4)


def test_long_pairs_are_cut_to_fit(fitted: Path) -> None:
    system = CrossEncoderReranker(model=str(fitted / "cross-encoder"))
    texts = {"a": Document("a", " ".join(WORDS * 9)), "b": Document("b", "")}
    [answer] = system.rerank([Query("q", " ".join(WORDS))], {"q": ["a", "b"]}, texts)
    assert len(answer.doc_ids) == 2
    assert np.isfinite(answer.scores).all()


# Term weights


def test_term_weights_are_fitted_exported_and_searched(fitted: Path, tmp_path: Path) -> None:
    config = ModelConfig.load(fitted / "deepct")
    assert (config.n_t, config.n_c, config.non_negative, config.profile.list_key) == (1, 0, True, "wordpiece")
    system = TermWeights(model=str(fitted / "deepct"), threads=1)
    system.index(documents(), tmp_path / "index")
    found = list(system.search(queries(), 10, tmp_path / "index"))
    assert all(answer.doc_ids and min(answer.scores) > 0 for answer in found)


# Document expansion


def test_a_trained_writer_writes_the_words_of_the_passage(fitted: Path, learnable: list[Path]) -> None:
    """It was trained to copy the first words; a model that did not read the passage could not."""
    pairs = [json.loads(line) for line in learnable[0].read_text().splitlines()]
    how = Sampling(queries=4, top=3, longest=6, length=48, seed=1)
    written = Sampler(fitted / "doct5query", "cpu").write([p["positive"] for p in pairs[:24]], how)
    overlap, chance = [], []
    for place, found in enumerate(written):
        words = set(" ".join(found).split())
        overlap.append(len(words & set(pairs[place]["query"].split())) / 3)
        chance.append(len(words & set(pairs[(place + 7) % 24]["query"].split())) / 3)
    assert np.mean(overlap) > np.mean(chance) + 0.2, (np.mean(overlap), np.mean(chance))


def test_what_is_written_depends_on_the_text_and_the_seed_alone(fitted: Path) -> None:
    sampler, texts = Sampler(fitted / "doct5query", "cpu"), random_texts(6, 30, 4)
    how = Sampling(queries=3, top=5, longest=8, length=48, seed=1)
    together = sampler.write(texts, how)
    assert together == [sampler.write([text], how)[0] for text in texts]
    assert together == sampler.write(texts, how)
    assert together != sampler.write(texts, replace(how, seed=2))
    assert all(len(found) == 3 for found in together)
    greedy = sampler.write(texts, replace(how, top=1))
    assert all(len(set(found)) == 1 for found in greedy)


def test_expanded_documents_are_found_by_words_that_they_do_not_have(fitted: Path, tmp_path: Path) -> None:
    system = DocT5Query(
        model=str(fitted / "doct5query"), queries=3, longest=6, length=48, stopwords="none",
        cache=str(tmp_path / "cache"),
    )  # fmt: skip
    texts = [*documents(12), Document("empty", "")]
    expanded = list(system.expand(texts))
    assert [d.doc_id for d in expanded] == [d.doc_id for d in texts]
    assert expanded[-1].text.strip() == ""
    (tmp_path / "index").mkdir()
    system.index(iter(texts), tmp_path / "index")
    checked = 0
    for before, after in zip(texts, expanded, strict=True):
        assert after.text.startswith(before.text)
        for word in set(after.text.split()) - set(before.text.split()):
            if word.isalpha() and len(word) > 2:
                [answer] = system.search([Query("q", word)], 20, tmp_path / "index")
                assert before.doc_id in answer.doc_ids
                checked += 1
    assert checked > 5


def test_queries_are_written_once_for_each_text(fitted: Path, tmp_path: Path) -> None:
    calls: list[int] = []

    def write(texts: object) -> list[list[str]]:
        calls.append(len(texts))  # type: ignore[arg-type]
        return [[f"about {text}"] for text in texts]  # type: ignore[attr-defined]

    kept = WrittenQueries(tmp_path, "f")
    assert kept.of(["a", "b", "a"], write) == [["about a"], ["about b"], ["about a"]]
    assert kept.of(["b"], write) == [["about b"]]
    with (tmp_path / "f.jsonl").open("a") as file:
        file.write('{"text": "half a li')  # a kill
    again = WrittenQueries(tmp_path, "f")
    assert again.of(["a", "c"], write) == [["about a"], ["about c"]]
    assert calls == [2, 1]
    assert len(WrittenQueries(tmp_path, "f")) == 3
    assert len(WrittenQueries(tmp_path, "other")) == 0


def test_a_broken_file_of_queries_is_named(tmp_path: Path) -> None:
    WrittenQueries(tmp_path, "f").of(["a"], lambda texts: [["x"] for _ in texts])
    path = tmp_path / "f.jsonl"
    good = path.read_text()
    for text, line in ((good + '{"text": 1}\n', 3), ("[]\n" + good, 1), ('{"format": "x"}\n', 1)):
        path.write_text(text)
        with pytest.raises(InputError, match=f"line {line}: invalid line"):
            WrittenQueries(tmp_path, "f")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="option cache"):
        WrittenQueries(tmp_path / "file" / "inside", "f")


def test_any_hugging_face_model_can_write(tmp_path: Path, fitted: Path) -> None:
    """T5 as it comes: another architecture, with a tokenizer that puts nothing before a text."""
    from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast, T5Config

    from tests.tiny import make_tokenizer

    plain = make_tokenizer()
    plain.post_processor = None  # type: ignore[assignment]
    tokens = {"pad_token": "[PAD]", "eos_token": "[SEP]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=plain, **tokens).save_pretrained(tmp_path / "t5")
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    config = T5Config(
        vocab_size=plain.get_vocab_size(), decoder_start_token_id=0, pad_token_id=0, eos_token_id=3, **sizes
    )
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path / "t5")
    system = DocT5Query(model=str(tmp_path / "t5"), queries=2, longest=5)
    expanded = list(system.expand(documents(3)))
    assert all(
        len(after.text) > len(before.text) for before, after in zip(documents(3), expanded, strict=True)
    )
    assert list((tmp_path / "t5.queries").glob("*.jsonl"))
    (tmp_path / "t5" / "tokenizer.json").unlink()
    with pytest.raises(MissingModelFile, match="no readable tokenizer"):
        Sampler(tmp_path / "t5", "cpu")
    with pytest.raises(OptionMismatch, match="reads 80 tokens"):
        Sampler(fitted / "doct5query", "cpu").write(["a"], Sampling(1, 1, 4, 99, 0))


@pytest.mark.parametrize(
    "changes", [{"queries": 0}, {"top": 0}, {"longest": -1}, {"length": 0}, {"seed": -1}]
)
def test_samplings_that_make_no_sense_are_refused(changes: dict[str, int], fitted: Path) -> None:
    with pytest.raises(OptionMismatch, match=next(iter(changes))):
        list(DocT5Query(model=str(fitted / "doct5query"), **changes).expand(documents(1)))  # type: ignore[arg-type]


def test_an_interrupted_fit_is_continued(base: Path, learnable: list[Path], tmp_path: Path) -> None:
    """The folder of an earlier call that ended at a checkpoint gives the model of an uninterrupted one."""
    data = TrainingData(
        learnable, str(base), recipe=replace(RECIPE, steps=6, checkpoint_every=2), device="cpu"
    )
    system = CrossEncoderReranker()
    for name in ("straight", "again"):
        (tmp_path / name).mkdir()
        system.fit(data, tmp_path / name)
    (tmp_path / "again" / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "again" / "checkpoints" / "step-0000006")
    system.fit(data, tmp_path / "again")
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("straight", "again"))
    assert one == other
    with pytest.raises(CoilError, match="different options"):
        system.fit(replace(data, recipe=replace(data.recipe, lr=1.0)), tmp_path / "again")
