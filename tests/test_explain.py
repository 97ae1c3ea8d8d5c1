"""An explanation's parts sum to the score, and every span points at the characters it names."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from coil.errors import InputError
from coil.explanations.explainer import explain_hit
from coil.explanations.explanation import Explanation, Scored, explain, explain_vectors
from coil.explanations.sentence_parts import SentencePart
from coil.explanations.table import format_contrast, format_table
from coil.hits.searcher import Searcher
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.scores import oracle
from coil.scores.prepared import PreparedQuery
from coil.scores.statistics import Tally
from coil.texts.values import Document
from coil.tokens.contexts import RowText
from coil.tokens.profile import By, ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.summing_encoder import SummingEncoder
from tests.tiny import PROFILE, WEIGHED, WORDS, make_model, make_vectors

LISTS = [0, 0, 2, -1, 4]  # of each token: a and b share one, d has none
LETTERS = "abcde"  # token i is written as letter i, so that spans can be checked
SYSTEMS = get_args(By)


def spell(tokens: list[int]) -> str:
    return "".join(LETTERS[token] for token in tokens)


def take_apart(
    query: str,
    query_vectors: TokenVectors,
    document: Document,
    vectors: TokenVectors,
    profile: ScoringProfile,
) -> Explanation:
    """The document alone in its collection."""
    alone = Tally()
    alone.add(vectors.keys)
    prepared = PreparedQuery.of(query_vectors, profile, alone)
    scored = Scored(RowText(document, (0, len(document.text))), vectors, alone.n_mentions)
    return explain_vectors(query, prepared, profile, scored, alone)


def sum_of_parts(explanation: Explanation) -> float:
    return sum(match.contribution for match in explanation.matches) + (explanation.sentence or 0.0)


@given(
    seed=st.integers(0, 2**32 - 1),
    query_ids=st.lists(st.integers(0, 4), max_size=6),
    document_ids=st.lists(st.integers(0, 4), max_size=8),
    widths=st.sampled_from([(0, 3), (1, 0), (4, 0), (4, 3)]),
    profile=st.sampled_from(
        [ScoringProfile(), ScoringProfile(floor=False), WEIGHED, WEIGHED.answering("bm25")]
    ),
)
@settings(max_examples=300, deadline=None)
def test_the_parts_sum_to_the_oracles_score(
    seed: int,
    query_ids: list[int],
    document_ids: list[int],
    widths: tuple[int, int],
    profile: ScoringProfile,
) -> None:
    rng = np.random.default_rng(seed)
    query_vectors, document_vectors = (
        make_vectors(rng, [LISTS[token] for token in ids], *widths) for ids in (query_ids, document_ids)
    )
    document = Document("d", spell(document_ids))
    made = take_apart(spell(query_ids), query_vectors, document, document_vectors, profile)
    score = oracle.score(query_vectors, document_vectors, profile, oracle.CountedRows([document_vectors]))
    if not query_ids:  # nothing was asked, and no document has a score
        score = 0.0
    assert made.score == pytest.approx(score, abs=1e-4)
    assert sum_of_parts(made) == pytest.approx(score, abs=1e-4)
    assert (made.sentence is None) == (not query_ids or widths[1] == 0 or profile.gamma == 0.0)
    assert len(made.matches) + len(made.unmatched) + len(made.without_list) == len(query_ids)
    assert [match.query_span[0] for match in made.matches] == sorted(m.query_span[0] for m in made.matches)
    for match in made.matches:
        token_id = LETTERS.index(match.query_token.strip("…"))
        others = [match.similarity, *(mention.similarity for mention in match.runner_ups)]
        assert others == sorted(others, reverse=True)
        mentions = [i for i in document_ids if LISTS[i] == LISTS[token_id]]
        assert len(others) == len(mentions) == match.count
        fit = profile.alpha + profile.beta * match.similarity
        assert match.fit == (max(fit, 0.0) if profile.floor else fit)
        assert match.contribution == pytest.approx(match.rarity * match.factor * match.fit)
        assert match.rows_with == (1 if profile.weight == "bm25" else 0)
        if profile.weight == "one":
            assert (match.rarity, match.factor) == (1.0, 1.0)
        assert document.text[slice(*match.document_span)] == match.document_token.strip("…")


def one_token(vector: list[float], *more: list[float]) -> TokenVectors:
    rows = [vector, *more]
    made = make_vectors(np.random.default_rng(0), [0] * len(rows), len(vector), 0)
    return replace(made, vectors=np.array(rows, dtype=np.float32))


def test_a_negative_similarity_is_shown_but_not_added() -> None:
    """The paper's Table 5 prints `is [-0.10]`."""
    query, document = one_token([1.0]), one_token([-0.1])
    floored = take_apart("a", query, Document("d", "a"), document, ScoringProfile())
    assert floored.matches[0].similarity == pytest.approx(-0.1)
    assert floored.matches[0].contribution == 0.0
    assert floored.score == 0.0
    assert "-0.10" in str(floored)
    row = str(floored).splitlines()[2]
    assert row.split()[-5:] == ["-0.10", "0.00", "floored", "at", "0"]
    assert format_table(floored, width=80).splitlines()[2].split()[-3:] == ["-0.10", "0.00", "floored"]
    assert floored.matches[0].floored
    raw = take_apart("a", query, Document("d", "a"), document, ScoringProfile(floor=False))
    assert not raw.matches[0].floored
    assert raw.score == raw.matches[0].contribution == pytest.approx(-0.1)


def test_the_best_mention_wins_and_the_first_of_equals() -> None:
    query, document = one_token([1.0]), one_token([2.0], [5.0], [5.0], [-1.0])
    made = take_apart("a", query, Document("d", "aaaa"), document, ScoringProfile())
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

    profile = ScoringProfile(list_key="word", unlisted="stopwords", query_length=24, document_length=64)
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
    assert lines[-2] == "  not compared: a, what (stop words)"
    share = made.score / made.own_score if made.own_score else 0.0
    assert lines[-1].endswith(f"would score {made.own_score:.2f}: this is {share:.0%} of that")
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
    assert made.score == (made.sentence if query else 0.0)
    assert str(made)


# --- with an index ---------------------------------------------------------------------------------------

SMALL = WORDS[:14]


@st.composite
def indexed(draw: st.DrawFn) -> tuple[list[str], str, int, str, str, By, ScoringProfile]:
    words = st.lists(st.sampled_from(SMALL), max_size=8).map(" ".join)
    long_text = st.tuples(words, words).map(lambda two: " ".join([two[0], *["water flow"] * 40, two[1]]))
    filled = words.filter(bool)  # an index leaves empty documents out
    texts = draw(st.lists(st.one_of(filled, long_text), min_size=2, max_size=6))
    return (
        texts,
        draw(words),
        draw(st.sampled_from([0, 3])),
        draw(st.sampled_from(["int8", "fp16", "fp32"])),
        draw(st.sampled_from(["chunk", "truncate"])),
        draw(st.sampled_from(SYSTEMS)),
        draw(st.sampled_from([PROFILE, WEIGHED])),
    )


@given(case=indexed())
@settings(max_examples=50, deadline=None)
def test_the_parts_sum_to_the_score_of_a_search(
    case: tuple[list[str], str, int, Any, Any, By, ScoringProfile],
) -> None:
    texts, query, n_c, precision, long, by, profile = case
    encoder = SummingEncoder(n_c=n_c, profile=profile)
    assume(n_c or by not in ("dense", "hybrid"))
    with tempfile.TemporaryDirectory() as folder:
        index = create(Path(folder) / "a.coil", precision=precision, long=long, encoder=encoder)
        index.add(Document(f"d{i}", text) for i, text in enumerate(texts))
        hits = {hit.doc_id: hit for hit in index.search(query, 100, by=by)}
        explained = [index.explain(query, f"d{i}", by) for i in range(len(texts))]
        index.close()
    for made, text in zip(explained, texts, strict=True):
        hit = hits.get(made.doc_id)
        if hit is not None:
            assert made.score == pytest.approx(hit.score, abs=1e-4)
            assert sum_of_parts(made) == pytest.approx(hit.score, abs=1e-4)
            assert made.chunk == hit.chunk
        elif query.strip():
            assert made.score == 0.0
        for match in made.matches:
            assert made.chunk[0] <= match.document_span[0] < match.document_span[1] <= made.chunk[1]
            assert text[slice(*match.document_span)] == match.document_token.strip("…")
        assert made.whole == (made.chunk == (0, len(text)))
        if made.sentence is not None:
            assert sum(part.contribution for part in made.sentence_parts) == pytest.approx(
                made.sentence, abs=1e-4
            )
        else:
            assert made.sentence_parts == ()
        json.dumps(made.to_json())
    for first, second in zip(explained, reversed(explained), strict=True):
        contrast = first.versus(second)
        assert sum(d.value for d in contrast.differences) == pytest.approx(contrast.gap, abs=1e-4)
        sizes = [abs(d.value) for d in contrast.differences]
        assert sizes == sorted(sizes, reverse=True)
        value = json.loads(json.dumps(contrast.to_json()))
        assert value["first"] == json.loads(json.dumps(first.to_json()))
        assert [part["value"] for part in value["differences"]] == [d.value for d in contrast.differences]
        upper = first if contrast.gap > 0 else second
        if abs(contrast.gap) > 0.01:
            assert contrast.summary.startswith(f"{upper.doc_id} scores {abs(contrast.gap):.2f} more than ")


@pytest.fixture
def bank(tmp_path: Path) -> Index:
    index = create(tmp_path / "a.coil", encoder=HashEncoder(n_c=0, profile=PROFILE))
    index.add(
        [
            Document("river", "the steep bank of the river bank"),
            Document("money", "a bank"),
            Document("long", " ".join(["water flow"] * 50 + ["steep bank"])),
            Document("none", "kitchen"),
        ]
    )
    return index


def test_a_chunk_is_named(bank: Index) -> None:
    text = bank.document("long").text
    made = bank.explain("steep", "long")
    start, end = made.chunk
    assert 0 < start < text.index("steep") < end == len(text) == made.characters
    assert f"  best chunk: characters {start} to {end} of {end}" in str(made).splitlines()
    away = bank.explain("steep river", "long")
    assert "  not in this part of the document: river" in str(away).splitlines()


def test_what_was_cut_off_is_told(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder(n_c=0), long="truncate")
    text = " ".join(["water flow"] * 50 + ["steep"])
    index.add([Document("long", text)])
    for made in (
        index.explain("steep flow", "long"),
        explain(HashEncoder(), "steep flow", Document("long", text)),
    ):
        assert made.chunk == (0, len(" ".join(["water flow"] * 31)))
        assert made.document_dropped == 39
        assert f"truncated: only characters 0 to {made.chunk[1]} of {len(text)} were indexed" in str(made)
        assert "not in this part of the document: steep" in str(made)
    index.verify()
    for hit in (*index.search("flow"), *index.rerank("flow", ["long"]), *index.rerank("steep", ["long"])):
        assert hit.chunk == made.chunk
    asked = index.explain(" ".join(["flow"] * 20), "long")
    assert asked.query_dropped == 6
    assert "the query is too long; its last 6 tokens were ignored" in str(asked)


def test_every_mention_can_be_shown(bank: Index) -> None:
    made = bank.explain("bank", "river")
    [match] = made.matches
    others = [mention.context.marked() for mention in match.runner_ups]
    assert len(others) == 1
    assert others[0] not in str(made)
    assert str(made).splitlines()[2].split()[-1] == "1", "how many others there are"
    assert others[0] in format_table(made, mentions=2)
    assert "others" in str(made)
    assert "others" not in format_table(made, mentions=2)


def test_a_document_that_is_no_hit_is_explained(bank: Index) -> None:
    made = bank.explain("steep bank", "none")
    assert (made.score, made.matches) == (0.0, ())
    assert str(made).splitlines() == [
        'none scores 0.00 for "steep bank"',
        "  not in the document: steep, bank",
        "  nothing contributes to the score: the document is not a hit",
    ]


def test_why_a_token_is_not_compared(encoder: Encoder) -> None:
    made = explain(encoder, "what, a ☃ river", Document("d", "river"))
    reasons = {token.text: token.reason for token in made.without_list}
    assert reasons == {"what": "stop word", ",": "punctuation", "a": "stop word"}
    assert "not compared: , (punctuation); what, a (stop words)" in str(made)
    assert [token.text for token in made.unmatched] == ["☃"], "every word has a list, the model's or not"


def test_the_querys_own_text_is_the_yardstick(encoder: Encoder) -> None:
    own = explain(encoder, "river bank", Document("d", "river bank"))
    assert own.own_score == own.score
    assert own.share_of_own_score == 1.0
    assert explain(encoder, " ", Document("d", "river")).own_score is None
    tok = explain(encoder, "river bank", Document("d", "river bank"), "tokens")
    assert tok.own_score == pytest.approx(own.score - (own.sentence or 0.0))
    assert tok.sentence is None


def make(doc_id: str, query: list[list[float]], document: list[list[float]], text: str) -> Explanation:
    """Both with the tokens a, c, e in their order; an empty vector leaves the token out."""
    ids = [0, 2, 4]
    rng = np.random.default_rng(0)
    kept = [number for number, vector in zip(ids, document, strict=True) if vector]
    q = replace(make_vectors(rng, ids, 1, 0), vectors=np.array(query, np.float32))
    d = replace(
        make_vectors(rng, kept, 1, 0), vectors=np.array([v for v in document if v], np.float32).reshape(-1, 1)
    )
    return take_apart("ace", q, Document(doc_id, text), d, ScoringProfile())


def test_a_contrast_says_in_words_what_decides() -> None:
    one = [[1.0], [1.0], [1.0]]
    first = make("x", one, [[3.0], [2.0], [1.0]], "ace")
    second = make("y", one, [[], [1.75], [1.5]], "ce")
    contrast = first.versus(second)
    assert [(d.query_token.strip("…"), d.value) for d in contrast.differences] == [
        ("a", 3.0),
        ("e", -0.5),
        ("c", 0.25),
    ]
    said = (
        "x scores 2.75 more than y, mostly through 'a…' (+3.00), which y does not contain, "
        "although y gains 0.50 through '…e'"
    )
    assert contrast.summary == said
    assert second.versus(first).summary == said
    assert second.versus(first).gap == -2.75
    assert str(contrast).splitlines()[0] == said
    same = first.versus(make("z", one, [[3.0], [2.0], [1.0]], "ace"))
    assert same.summary == "x and z score the same, 6.00"
    evened = make("w", one, [[2.0], [3.0], [1.0]], "ace")
    assert first.versus(evened).summary.startswith("x and w score the same, 6.00; differences such as 'a…'")
    floored = make("v", one, [[-1.0], [], []], "a")
    assert "-1.00*" in str(first.versus(floored))
    assert "* below 0, so floored: it adds nothing" in str(first.versus(floored))
    assert first.versus(floored).gap == 6.0
    with pytest.raises(InputError, match="a value of type str; expected the explanation"):
        first.versus("z")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="different queries"):
        first.versus(replace(second, query="other"))


# --- tables ----------------------------------------------------------------------------------------------

RIVER = "The bank of the river is steep. Nobody asked why. Money is in the bank! Wait. Deep water. Open wood."


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Index:
    index = create(tmp_path_factory.mktemp("weighed") / "a.coil", encoder=SummingEncoder())
    index.add(Document(f"d{n}", " ".join([WORDS[n % 40], WORDS[n % 7], "water"])) for n in range(1200))
    index.add([Document("river", RIVER), Document("money", "Money, money. A bank account.")])
    return index


def columns_of(shown: str) -> list[str]:
    [header] = [line for line in shown.splitlines() if line.startswith("  query ")]
    return [name.strip() for name in header.split("  ") if name.strip()]


@pytest.mark.parametrize(
    ("by", "columns"),
    [
        ("coil", ["query", "in the document", "texts with it", "here", "fit", "adds", "share of the score"]),
        (
            "tokens",
            ["query", "in the document", "texts with it", "here", "fit", "adds", "share of the score"],
        ),
        ("bm25", ["query", "in the document", "texts with it", "here", "adds", "share of the score"]),
        ("hybrid", ["query", "in the document", "texts with it", "here", "adds", "share of the score"]),
        ("dense", ["query", "in the document", "adds", "share of the score"]),
    ],
)
def test_a_column_that_says_nothing_is_left_out(weighed: Index, by: By, columns: list[str]) -> None:
    shown = str(weighed.explain("steep river bank", "river", by))
    assert columns_of(shown) == columns
    assert ("by " + by in shown.splitlines()[0]) == (by != "coil")


def test_the_papers_profile_has_no_rarity(bank: Index) -> None:
    shown = columns_of(str(bank.explain("bank", "river")))
    assert shown == ["query", "in the document", "similarity", "adds", "share of the score", "others"]
    counted = columns_of(str(bank.explain("bank", "river", "bm25")))
    assert counted == ["query", "in the document", "texts with it", "here", "adds", "share of the score"]


def test_a_line_tells_how_rare_how_often_and_how_well_it_fits(weighed: Index) -> None:
    made = weighed.explain("steep bank", "river")
    [line] = [line for line in str(made).splitlines() if line.startswith("  bank ")]
    match = made.matches[1]
    told = f"{match.rows_with} of 1,202    2×   {match.fit:.2f}    {match.contribution:.2f}"
    assert told in line
    every = format_table(made, mentions=5)
    assert f"{match.runner_ups[0].fit:.2f}" in every
    assert match.runner_ups[0].context.marked() in every


def test_the_sentence_part_is_split_over_sentences(weighed: Index) -> None:
    made = weighed.explain("steep river bank", "river")
    shown = str(made).splitlines()
    at = next(place for place, line in enumerate(shown) if line.startswith("  sentence "))
    rows = shown[at + 1 : at + 5]
    spoken = sorted(
        (part for part in made.sentence_parts if part.span is not None),
        key=lambda part: -abs(part.contribution),
    )
    for row, part in zip(rows, spoken[:3], strict=False):
        assert row.strip().startswith(part.text)
        assert f" {part.contribution:.2f} " in f"{row} "
    rest = sum(part.contribution for part in made.sentence_parts if part not in spoken[:3])
    assert rows[3].strip().startswith("3 more sentences, start and end, rounding")
    assert f" {rest:.2f} " in f"{rows[3]} "
    every = format_table(made, mentions=50)
    assert all(part.text in every for part in spoken)
    assert "more sentences" not in every
    # One sentence is all of the text: there is nothing to split.
    one = replace(made, sentence_parts=(SentencePart("All.", (0, 4), made.sentence or 0.0),))
    assert "All." not in str(one)


@pytest.mark.parametrize("width", [120, 100, 99, 80, 64, 60])
@pytest.mark.parametrize("by", SYSTEMS)
def test_tables_fit_the_terminal(weighed: Index, by: By, width: int) -> None:
    query = "steep river bank of money in deep water"
    first, second = (weighed.explain(query, doc_id, by) for doc_id in ("river", "money"))
    shown = format_table(first, width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert max(map(len, format_table(first, width=width, mentions=9).splitlines())) <= width
    if by != "dense" and 64 <= width < 100:
        assert "texts: how many of 1,202 contain the word" in shown
    contrast = format_contrast(first.versus(second), width=width)
    assert max(map(len, contrast.splitlines())) <= max(width, 66)


def test_a_contrast_shows_what_the_numbers_are_made_of(weighed: Index) -> None:
    first, second = (weighed.explain("steep bank money", doc_id) for doc_id in ("river", "money"))
    shown = str(first.versus(second))
    assert columns_of(shown)[:2] == ["query", "texts with it"]
    [header] = [line for line in shown.splitlines() if line.startswith("  query ")]
    assert header.split().count("fit") == header.split().count("adds") == 2
    [line] = [line for line in shown.splitlines() if line.startswith("  money ")]
    money = [next(m for m in e.matches if m.query_token == "money") for e in (first, second)]
    assert f"{money[0].rows_with} of 1,202" in line
    for match in money:
        assert f"{match.count}×  {match.fit:.2f}   {match.contribution:.2f}" in line
    assert f"{money[0].contribution - money[1].contribution:+.2f}" in line
    top = max(first.sentence_parts[:-2], key=lambda part: abs(part.contribution))
    assert top.text[:12] in shown
    counted = str(weighed.explain("money", "river", "bm25").versus(weighed.explain("money", "money", "bm25")))
    assert "fit" not in counted
    assert "* below" not in counted
