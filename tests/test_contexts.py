"""Chunks keep their context: title, path and headings count in every row, and are shown for what they are."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.cli.main import run
from coil.errors import DamagedManifest
from coil.explanations.explainer import explain_hit
from coil.hits.reranker import rerank
from coil.indexes.opening import create, open_index
from coil.lists.rows import row_spans, row_texts
from coil.storage.manifest import MANIFEST_FILE
from coil.texts.corpora import read_documents
from coil.texts.markup import Heading, find_headings
from coil.texts.values import Document
from coil.tokens.contexts import MOST_TOKENS, ContextRule, Outline, RowText
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.onnx_encoder import OnnxEncoder
from tests.hash_encoder import HashEncoder
from tests.mutations import change_manifest
from tests.tiny import WEIGHED, make_tokenizer

TOKENIZER = Tokenizer(make_tokenizer(), "tiny")
FILLER = "water flow over stone. " * 150
GUIDE = f"# Guide\n\nintro\n\n## Rivers\n\n{FILLER}\n\n### Banks\n\nsteep\n\n## Money\n\nloan\n"


def trail(document: Document, piece: str) -> list[tuple[str, str]]:
    start = document.text.index(piece)
    return [(part.where, part.text) for part in Outline(document).parts((start, start + len(piece)))]


def test_a_text_of_nothing_but_headings_has_a_limited_number() -> None:
    for markup, lines in (("markdown", "# h\n"), ("rst", "head\n====\n\n")):
        found = find_headings(lines * 150_000, markup)  # type: ignore[arg-type]
        assert (len(found), found[-1].start) == (100_000, len(lines) * 99_999)


def test_headings_above_a_span_are_its_trail() -> None:
    guide = Document("guide.md", GUIDE, {"title": "Guide"})
    assert trail(guide, "intro") == [("title", "Guide")]
    assert trail(guide, "water") == [("title", "Guide"), ("heading", "Rivers")]
    assert trail(guide, "steep") == [("title", "Guide"), ("heading", "Rivers"), ("heading", "Banks")]
    assert trail(guide, "### Banks") == [("title", "Guide"), ("heading", "Rivers")]
    assert trail(guide, "\n\n### Banks") == [("title", "Guide"), ("heading", "Rivers")]
    assert trail(guide, "loan") == [("title", "Guide"), ("heading", "Money")]
    assert trail(guide, GUIDE) == []
    assert trail(Document("guide", GUIDE), "steep") == []  # not known to be Markdown


def _headings_above(outline: Outline, text: str, begin: int) -> list[str]:
    """Reads all headings up to a place, one after another."""
    above: list[Heading] = []
    for heading in outline.headings:
        if heading.start >= begin and text[begin : heading.start].strip():
            break
        while above and above[-1].level >= heading.level:
            above.pop()
        if heading.start >= begin:
            break
        above.append(heading)
    return [heading.text for heading in above]


@given(
    st.lists(st.sampled_from(["# a", "## b", "### c", "#### d", "## e", "text", "", "  "]), max_size=12),
    st.data(),
)
def test_the_trail_is_that_of_all_headings_before_it(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    begin = data.draw(st.integers(0, len(text)))
    outline = Outline(Document("x.md", text))
    found = [part.text for part in outline.parts((begin, len(text))) if part.where == "heading"]
    assert found == _headings_above(outline, text, begin)


@pytest.mark.parametrize("text", ["# h\n" * 200_000, "word " * 10_000_000 + "\n# h"], ids=["many", "far"])
def test_the_trail_of_a_chunk_does_not_take_longer_in_a_longer_document(text: str) -> None:
    outline = Outline(Document("x.md", text))
    begin = time.monotonic()
    for start in range(0, 2_000, 2):
        at = len(text) - 4 - start if text.startswith("#") else start
        outline.parts((at, at + 2))
    assert time.monotonic() - begin < 2


def test_a_path_is_told_unless_the_title_has_its_name() -> None:
    text = "# Setting up\n\nfirst\n\nsecond"
    assert trail(Document("docs/install.md", text, {"title": "Setting up"}), "second") == [
        ("path", "docs/install"),
        ("title", "Setting up"),
    ]
    assert trail(Document("docs/setting-up.md.gz", text, {"title": "Setting up"}), "second") == [
        ("title", "Setting up")
    ]
    assert trail(Document("src/main.py", "x", {"title": "src/main.py"}), "x") == [("title", "src/main.py")]
    assert trail(Document("note.txt", "x"), "x") == [("path", "note")]
    assert trail(Document("a", "A  river\ntext", {"title": "A river"}), "text") == [("title", "A  river")]
    assert trail(Document("a", "Article text", {"title": "Art"}), "Article text") == [("title", "Art")]
    assert trail(Document("a", "text", {"title": 5}), "text") == []


def test_every_character_of_a_context_is_found_again() -> None:
    guide = Document("guide.md", GUIDE, {"title": "Guide"})
    start = GUIDE.index("steep")
    row = Outline(guide).row(TOKENIZER, (start, start + 5), 30)
    assert row.text == "Guide › Rivers › Banks\nsteep"
    for word, where in (("Guide", "title"), ("Rivers", "heading"), ("Banks", "heading"), ("steep", "text")):
        at = row.text.index(word)
        place = row.place((at, at + len(word)))
        assert (place.where, GUIDE[slice(*place.span)]) == (where, word)
    assert row.place((6, 7)).span == (0, 0)  # the sign between two parts
    code = Outline(Document("a.py", "x = 1", {"title": "a.py"})).row(TOKENIZER, (0, 5), 30)
    place = code.place((0, 4))
    assert (place.where, place.span, place.around[slice(*place.at)]) == ("title", (0, 0), "a.py")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["# river", "## bank", "### é x", "water flow", "\n", "```", "money. loan"])),
    st.sampled_from(["", "---\ntags: [loan, money]\nby: A river\n---\n", f"---\nx: y{' z' * 90}\n---\n"]),
    st.sampled_from(["", "river", "a long title " * 12, "x" * 90]),
    st.sampled_from(["a.md", "folder/some name.md", "plain", "n.txt"]),
    st.integers(0, 48),
)
def test_rows_fit_and_their_spans_are_the_text(
    lines: list[str], front: str, title: str, name: str, most: int
) -> None:
    encoder = HashEncoder(profile=replace(WEIGHED, document_length=40))
    text = front + "\n".join(lines * 4)
    rule = ContextRule(most, front_matter=True)
    document = Document(name, text, {"title": title} if title else {})
    spans = row_spans(encoder, document, "chunk", rule)
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    assert all(before[1] >= after[0] for before, after in pairwise(spans))
    rows = list(row_texts(encoder, document, spans, rule))
    length = encoder.config.profile.document_length
    for row, tokens in zip(rows, TOKENIZER.cut([row.text for row in rows], length), strict=True):
        assert tokens.dropped == 0
        assert row.text.endswith(text[slice(*row.span)])
        [of_context] = TOKENIZER.cut([row.context], 2**31)
        assert len(of_context.spans) <= min(most, length // 4)
        for start, end in tokens.spans.tolist():
            place = row.place((start, end))
            assert place.around[slice(*place.at)] == row.text[start:end]
            if place.span != (0, 0):
                assert text[slice(*place.span)] == row.text[start:end]


@pytest.fixture(scope="module")
def bundled() -> OnnxEncoder:
    return OnnxEncoder()


def documents() -> list[dict[str, Any]]:
    return [
        {"id": "npm", "title": "kubernetes version", "text": FILLER + "It prints a number. " + FILLER},
        {"id": "guide.md", "title": "Guide", "text": GUIDE.replace("steep", FILLER + "steep")},
        {"id": "other", "text": FILLER + "steep version " + FILLER},
    ]


def test_the_title_counts_in_every_chunk(tmp_path: Path, bundled: OnnxEncoder) -> None:
    with create(tmp_path / "a.coil", encoder=bundled) as index:
        index.add(documents())
        segment = index.searcher.collection.segments[0].segment
        rows = segment.rows_at(segment.find("kubernet"))[0].tolist()
        assert len(rows) > 2
        assert rows == np.flatnonzero(segment.row_documents == segment.row_documents[rows[0]]).tolist()
        hit = index.search("kubernetes prints a number", k=1)[0]
        assert hit.doc_id == "npm"
        assert hit.chunk[0] > 0
        assert hit.context == "kubernetes version"
        index.verify()


def test_a_match_in_the_title_is_explained_as_such(tmp_path: Path, bundled: OnnxEncoder) -> None:
    with create(tmp_path / "a.coil", encoder=bundled) as index:
        index.add(documents())
        found = index.search_many(["kubernetes prints a number", "steep banks of the guide"], k=3)
        for query, hits in zip(
            ("kubernetes prints a number", "steep banks of the guide"), found, strict=True
        ):
            for hit in hits:
                assert index.explain(query, hit.doc_id).score == pytest.approx(hit.score, rel=1e-5)
        told = index.explain("kubernetes prints a number", "npm")
        title, prints = told.matches[0], told.matches[1]
        assert (title.where, title.document_span) == ("title", (0, 10))
        assert str(title.context).startswith("title: [kubernetes] version")
        assert not told.chunk[0] <= title.document_span[0] < told.chunk[1]
        assert (prints.where, prints.document_token) == ("text", "prints")
        assert told.chunk[0] <= prints.document_span[0] < told.chunk[1]
        assert told.context == "kubernetes version"
        assert "title: [kubernetes]" in str(told)
        assert ", encoded with: kubernetes version" in str(told)
        assert told.sentence is not None
        assert sum(part.contribution for part in told.sentence_parts) == pytest.approx(told.sentence)
        [of_title] = [part for part in told.sentence_parts if part.text == "title and headings"]
        assert of_title.span is None
        text = index.document("npm").text
        assert all(
            part.text == " ".join(text[slice(*part.span)].split())
            for part in told.sentence_parts
            if part.span
        )
        told = index.explain("steep banks of the guide", "guide.md")
        where = {match.query_token: match.where for match in told.matches}
        assert where == {"steep": "text", "banks": "heading", "guide": "title"}


def test_a_corpus_is_reranked_as_an_index_scores_it(tmp_path: Path, bundled: OnnxEncoder) -> None:
    query = "kubernetes prints steep banks"
    with create(tmp_path / "a.coil", encoder=bundled) as index:
        index.add(documents())
        given = [index.document(doc_id) for doc_id in ("npm", "guide.md", "other")]
        expected = {hit.doc_id: hit.score for hit in index.search(query, k=3)}
    found = rerank(bundled, {"q": query}, {"q": [document.doc_id for document in given]}, given)
    assert dict(found.rows["q"]) == pytest.approx(expected)


def change_settings(folder: Path, **settings: Any) -> None:
    """As an older version, or nobody, would have written them."""
    change_manifest(folder, lambda manifest: manifest["settings"].update(settings))


def test_an_index_made_without_contexts_stays_without(tmp_path: Path) -> None:
    encoder = HashEncoder()
    document = {"id": "a", "title": "river", "text": "water flow. " * 400}
    create(tmp_path / "a.coil", encoder=encoder).close()
    change_manifest(tmp_path / "a.coil", lambda manifest: manifest["settings"].pop("context"))
    with open_index(tmp_path / "a.coil", encoder) as index:
        index.add([document])
        segment = index.searcher.collection.segments[0].segment
        assert segment.rows_at(segment.find("river"))[0].tolist() == [0]
        told = explain_hit(index.searcher, "river water", "a")
        assert told.context == ""
        assert told.score == pytest.approx(index.search("river water", k=1)[0].score)
    with create(tmp_path / "b.coil", encoder=encoder) as index:
        index.add([document])
        segment = index.searcher.collection.segments[0].segment
        assert len(segment.rows_at(segment.find("river"))[0]) == segment.n_rows > 1


FRONT = """---
title: A guide
date: 2024-05-01
draft: false
image: /img/kubernetes.png
tags:
  - kubernetes
  - "roll out"
author: Jane Doe
---
"""


def test_the_words_of_the_front_matter_come_after_the_headings() -> None:
    guide = Document("guide.md", FRONT + GUIDE, {"title": "A guide"})
    start = guide.text.index("steep")
    row = Outline(guide, front_matter=True).row(TOKENIZER, (start, start + 5), 100)
    assert row.context == "A guide › Guide › Rivers › Banks › kubernetes › roll out › Jane Doe"
    for word in ("kubernetes", "out", "Doe"):
        at = row.text.index(word)
        place = row.place((at, at + len(word)))
        assert (place.where, guide.text[slice(*place.span)]) == ("field", word)
        assert place.span[0] > FRONT.index("tags") or word == "Doe"
    first = Outline(guide, front_matter=True).row(TOKENIZER, (0, len(FRONT)), 100)
    assert first.context == ""  # it has all of it itself
    assert (
        Outline(guide).row(TOKENIZER, (start, start + 5), 100).context == "A guide › Guide › Rivers › Banks"
    )
    for name in ("guide.txt", "guide.rst", "guide.html", "guide"):
        other = Document(name, guide.text, guide.fields)
        assert "Jane" not in Outline(other, front_matter=True).row(TOKENIZER, (start, start + 5), 100).context


def test_front_matter_belongs_to_every_chunk(tmp_path: Path, bundled: OnnxEncoder) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "guide.md").write_text(FRONT + GUIDE.replace("steep", FILLER + "a steep kingfisher"))
    with create(tmp_path / "a.coil", encoder=bundled) as index:
        index.add(read_documents(notes))
        segment = index.searcher.collection.segments[0].segment
        assert len(segment.rows_at(segment.find("kubernet"))[0]) == segment.n_rows > 2
        [hit] = index.search("kubernetes kingfisher", k=1, filter='author = "Jane Doe"')
        assert hit.chunk[0] > 0
        assert hit.fields["tags"] == ["kubernetes", "roll out"]
        assert hit.context == "A guide › Guide › Rivers › Banks"  # where it is, not what it is about
        told = index.explain("kubernetes kingfisher", "guide.md")
        assert told.score == pytest.approx(hit.score, rel=1e-5)
        assert {match.query_token: match.where for match in told.matches} == {
            "kubernetes": "field",
            "kingfisher": "text",
        }
        [shown] = [line for line in str(told).splitlines() if line.startswith("  kubernetes")]
        assert "field: " in shown
        assert "tags: - [kubernetes]" in shown
        text = index.document("guide.md").text
        assert text[slice(*told.matches[0].document_span)] == "kubernetes"
        index.verify()
        found = rerank(bundled, {"q": "kubernetes kingfisher"}, {"q": ["guide.md"]}, read_documents(notes))
        assert dict(found.rows["q"]) == pytest.approx({"guide.md": hit.score})


def test_an_index_made_without_front_matter_stays_without(tmp_path: Path, bundled: OnnxEncoder) -> None:
    create(tmp_path / "a.coil", encoder=bundled).close()
    change_manifest(tmp_path / "a.coil", lambda manifest: manifest["settings"].pop("front_matter"))
    with open_index(tmp_path / "a.coil", bundled) as index:
        index.add([Document("guide.md", FRONT + GUIDE, {"title": "A guide"})])
        segment = index.searcher.collection.segments[0].segment
        assert segment.rows_at(segment.find("kubernet"))[0].tolist() == [0]
        told = index.explain("loan", "guide.md")
        assert "kubernetes" not in told.context
        assert told.score == pytest.approx(index.search("loan", k=1)[0].score)
    change_settings(tmp_path / "a.coil", front_matter=1)
    with pytest.raises(DamagedManifest, match="front_matter"):
        open_index(tmp_path / "a.coil", bundled)


@pytest.mark.parametrize("wrong", [-1, "48", None, 1.5, True, 1 << 20])
def test_a_setting_that_is_none_is_refused(tmp_path: Path, wrong: Any) -> None:
    create(tmp_path / "a.coil", encoder=HashEncoder()).close()
    assert f'"context":{MOST_TOKENS}' in (tmp_path / "a.coil" / MANIFEST_FILE).read_text().replace(" ", "")
    change_settings(tmp_path / "a.coil", context=wrong)
    with pytest.raises(DamagedManifest, match="context"):
        open_index(tmp_path / "a.coil", HashEncoder())


def test_a_row_without_a_context_is_its_span() -> None:
    row = RowText(Document("a", "river bank"), (6, 10))
    assert (row.text, row.before) == ("bank", "")
    assert row.place((0, 4)).span == (6, 10)
    assert row.place((0, 4)).where == "text"


def test_the_command_line_says_where_a_chunk_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "guide.md").write_text(GUIDE.replace("steep", FILLER + "steep kingfisher"))
    out = str(tmp_path / "a.coil")
    assert run(["index", str(tmp_path / "notes"), "--out", out]) == 0
    assert run(["search", out, "steep kingfisher"]) == 0
    assert "guide.md  Guide › Rivers" in capsys.readouterr().out
    assert run(["search", out, "steep kingfisher", "--json"]) == 0
    assert '"context": "Guide › Rivers' in capsys.readouterr().out
