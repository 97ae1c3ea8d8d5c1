"""An explanation's parts sum to the score, and every span points at the characters it names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.explanations.explanation import Explanation, explain, explain_hit, explain_vectors
from coil.explanations.snippet import cut_snippet, piece_text
from coil.explanations.table import format_table
from coil.hits.searcher import Searcher
from coil.scores import reference
from coil.texts.values import Document
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.tokens.profile import ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors
from tests.tiny import make_model, make_vectors

KEYS = ListKeys(np.array([0, 0, 2, NO_LIST, 4], dtype=np.int32))
LETTERS = "abcde"  # token i is written as letter i, so that spans can be checked


def spell(token_ids: list[int]) -> str:
    return "".join(LETTERS[token_id] for token_id in token_ids)


def sum_of_parts(explanation: Explanation) -> float:
    return sum(match.contribution for match in explanation.matches) + (explanation.sentence or 0.0)


@given(
    seed=st.integers(0, 2**32 - 1),
    query_ids=st.lists(st.integers(0, 4), max_size=6),
    document_ids=st.lists(st.integers(0, 4), max_size=8),
    widths=st.sampled_from([(0, 3), (1, 0), (4, 0), (4, 3)]),
    floor=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_parts_sum_to_the_oracles_score(
    seed: int, query_ids: list[int], document_ids: list[int], widths: tuple[int, int], floor: bool
) -> None:
    rng = np.random.default_rng(seed)
    query_vectors, document_vectors = (make_vectors(rng, ids, *widths) for ids in (query_ids, document_ids))
    profile = ScoringProfile(floor=floor)
    document = Document("d", spell(document_ids))
    made = explain_vectors(spell(query_ids), query_vectors, document, document_vectors, profile, KEYS)
    score = reference.score(query_vectors, document_vectors, profile, KEYS)
    assert made.score == pytest.approx(score, abs=1e-4)
    assert sum_of_parts(made) == pytest.approx(score, abs=1e-4)
    assert (made.sentence is None) == (widths[1] == 0)
    tokens = len(made.matches) + len(made.unmatched) + len(made.without_list)
    assert tokens == (len(query_ids) if widths[0] else 0)
    assert [match.query_span[0] for match in made.matches] == sorted(m.query_span[0] for m in made.matches)
    for match in made.matches:
        token_id = LETTERS.index(match.query_token.strip("…"))
        others = [match.similarity, *(mention.similarity for mention in match.runner_ups)]
        assert others == sorted(others, reverse=True)
        mentions = [i for i in document_ids if KEYS.table[i] == KEYS.table[token_id]]
        assert len(others) == len(mentions)
        assert match.contribution == (max(match.similarity, 0.0) if floor else match.similarity)
        assert document.text[slice(*match.document_span)] == match.document_token.strip("…")


def one_token(vector: list[float], *more: list[float]) -> TokenVectors:
    rows = [vector, *more]
    made = make_vectors(np.random.default_rng(0), [0] * len(rows), len(vector), 0)
    return replace(made, vectors=np.array(rows, dtype=np.float32))


def test_a_negative_similarity_is_shown_but_not_added() -> None:
    """The paper's Table 5 prints `is [-0.10]`."""
    query, document = one_token([1.0]), one_token([-0.1])
    floored = explain_vectors("a", query, Document("d", "a"), document, ScoringProfile(), KEYS)
    assert floored.matches[0].similarity == pytest.approx(-0.1)
    assert floored.matches[0].contribution == 0.0
    assert floored.score == 0.0
    assert "-0.10" in str(floored)
    raw = explain_vectors("a", query, Document("d", "a"), document, ScoringProfile(floor=False), KEYS)
    assert raw.score == raw.matches[0].contribution == pytest.approx(-0.1)


def test_the_best_mention_wins_and_the_first_of_equals() -> None:
    query, document = one_token([1.0]), one_token([2.0], [5.0], [5.0], [-1.0])
    made = explain_vectors("a", query, Document("d", "aaaa"), document, ScoringProfile(), KEYS)
    [match] = made.matches
    assert (match.similarity, match.document_span) == (5.0, (1, 2))
    assert [(m.similarity, m.span) for m in match.runner_ups] == [
        (5.0, (2, 3)),
        (2.0, (0, 1)),
        (-1.0, (3, 4)),
    ]


# --- with a model ----------------------------------------------------------------------------------------

TEXT = "The Bank of the\n\nriver was steep. Riverbanks, running and a bank account: interest rates."
QUERY = "a river bank rate what bank"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    from coil.vectors.torch_encoder import TorchEncoder

    profile = ScoringProfile(list_key="stem", unlisted="stopwords", query_length=24, document_length=64)
    folder: Path = make_model(tmp_path_factory.mktemp("m") / "m", ModelConfig(8, 6, profile=profile))
    return TorchEncoder(folder)


def test_spans_point_at_the_right_characters(encoder: Encoder) -> None:
    made = explain(encoder, QUERY, Document("d", TEXT))
    assert [match.query_token for match in made.matches] == ["river", "bank", "rate", "bank"]
    assert [QUERY[slice(*match.query_span)] for match in made.matches] == ["river", "bank", "rate", "bank"]
    for match in made.matches:
        shown = TEXT[slice(*match.document_span)]
        assert match.document_token.strip("…") == shown == match.context.token
        assert shown.lower().startswith(match.query_token.lower())
        assert match.context.marked().count(f"[{shown}]") == 1
        for mention in match.runner_ups:
            assert TEXT[slice(*mention.span)].lower().startswith(match.query_token)
    assert made.matches[2].document_token == "rates", "one stem, one list"
    assert [token.text for token in made.without_list] == ["a", "what"]
    assert made.unmatched == ()
    missing = explain(encoder, "bank lounge", Document("d", TEXT))
    assert [(token.text, token.span) for token in missing.unmatched] == [("lounge", (5, 11))]


def test_a_hit_is_explained_with_the_vectors_that_found_it(encoder: Encoder) -> None:
    documents = [Document("x", "money"), Document("d", TEXT), Document("e", "river")]
    searcher = Searcher.build(encoder, documents)
    for hit in searcher.search(QUERY):
        made = explain_hit(searcher, QUERY, hit.doc_id)
        assert made.score == pytest.approx(hit.score, abs=1e-4)
        assert sum_of_parts(made) == pytest.approx(hit.score, abs=1e-4)
        fresh = explain(encoder, QUERY, documents[searcher.collection.ordinal_of(hit.doc_id)])
        assert [m.document_span for m in fresh.matches] == [m.document_span for m in made.matches]


def test_it_prints_readably(encoder: Encoder) -> None:
    made = explain(encoder, QUERY, Document("d", TEXT))
    lines = str(made).splitlines()
    assert lines[0] == f'd scores {made.score:.2f} for "{QUERY}"'
    rows = lines[2 : 2 + len(made.matches)]
    for line, match in zip(rows, made.matches, strict=True):
        assert line.split()[0] == match.query_token
        assert f"[{match.context.token}]" in line
        assert f"{match.similarity:.2f}" in line
    # Columns stand under each other, whatever the length of a context.
    numbers = [f"{match.similarity:.2f}" for match in made.matches]
    assert len({line.index(n) + len(n) for line, n in zip(rows, numbers, strict=True)}) == 1
    assert any(line.lstrip().startswith("sentence") for line in lines)
    assert lines[-1] == "  not compared: a, what"
    coloured = format_table(made, lambda text, share: f"<{text}>")
    assert coloured.replace("<", "").replace(">", "") == str(made)


def test_json_is_complete(encoder: Encoder) -> None:
    made = explain(encoder, QUERY, Document("d", TEXT))
    value = json.loads(json.dumps(made.to_json()))
    assert value["score"] == made.score
    assert value["sentence"] == made.sentence
    assert [match["similarity"] for match in value["matches"]] == [m.similarity for m in made.matches]
    assert [len(match["runner_ups"]) for match in value["matches"]] == [
        len(m.runner_ups) for m in made.matches
    ]
    assert [token["text"] for token in value["without_list"]] == ["a", "what"]


@pytest.mark.parametrize(("query", "text"), [("", "bank"), ("bank", ""), ("", "")])
def test_empty_texts_are_explained_too(encoder: Encoder, query: str, text: str) -> None:
    made = explain(encoder, query, Document("d", text))
    assert made.matches == ()
    assert made.score == made.sentence
    assert str(made)


# --- snippets --------------------------------------------------------------------------------------------


@given(text=st.text(alphabet="ab \n\t.", max_size=120), data=st.data())
def test_a_snippet_is_one_line_around_the_token(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    snippet = cut_snippet(text, (start, end), characters=10)
    assert "\n" not in snippet.marked()
    assert "".join(snippet.token.split()) == "".join(text[start:end].split())
    around = "".join(f"{snippet.before}{snippet.after}".replace("…", "").split())
    assert len(around) <= 20


def test_pieces_show_where_their_word_goes_on() -> None:
    text = "the running, man"
    assert piece_text(text, (0, 3)) == "the"
    assert piece_text(text, (4, 7)) == "run…"
    assert piece_text(text, (7, 8)) == "…n…"
    assert piece_text(text, (8, 11)) == "…ing"
    assert piece_text(text, (11, 12)) == ","
