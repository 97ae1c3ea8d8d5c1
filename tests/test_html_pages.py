"""HTML pages as they are written: tags left out, odd character sets, and pages that should take forever."""

from __future__ import annotations

import codecs
import time
import tracemalloc
from encodings.aliases import aliases
from pathlib import Path

import pytest

from coil.texts.corpora import read_documents
from coil.texts.html import html_charset, read_html
from tests.files import put

NOT_OF_PAGES = (
    "hex base64 zlib bz2 uu quopri rot13 idna punycode undefined unicode_escape raw_unicode_escape utf-7 "
    "utf-16 utf-16-le utf-32 cp037"
).split()
OF_PAGES = "iso-8859-15 windows-1251 koi8-r euc-jp gb18030 big5 iso-2022-jp utf_8_sig".split()
# As browsers read them: the larger set of the same family.
LARGER = {
    "latin1": "cp1252", "us-ascii": "cp1252", "ISO-8859-9": "cp1254", "shift_jis": "cp932", "x-sjis": "cp932",
    "gb2312": "gb18030", "gbk": "gb18030", "x-gbk": "gb18030", "euc-kr": "cp949", "tis-620": "cp874",
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_OF_PAGES)
def test_a_character_set_that_no_page_can_have_counts_as_unknown(tmp_path: Path, name: str) -> None:
    data = f'<meta charset="{name}"><p>caf'.encode() + b"\xe9 river bank" + b" and more words" * 9
    assert html_charset(data) is None
    put(tmp_path / "good.txt", "river")
    put(tmp_path / "a.html", data)
    assert [document.doc_id for document in read_documents(tmp_path)] == ["a.html", "good.txt"]
    [document] = read_documents(tmp_path / "a.html")
    assert document.text.startswith("caf\ufffd river bank and")


@pytest.mark.parametrize("name", OF_PAGES)
def test_a_character_set_of_pages_is_used(tmp_path: Path, name: str) -> None:
    page = f"<title>T</title><meta charset={name}><p>"
    data = page.encode() + "ж".encode(name, errors="replace")
    assert html_charset(data) == codecs.lookup(name).name
    assert html_charset(page.encode() + b"\xff\xfe\xe9") == codecs.lookup(name).name


@pytest.mark.parametrize("name", LARGER)
def test_a_character_set_is_read_as_browsers_read_it(tmp_path: Path, name: str) -> None:
    assert html_charset(f"<meta charset={name}>".encode()) == LARGER[name]
    data = f"<meta charset={name}><p>river ".encode() + b"\x93bank\x94" * (LARGER[name] == "cp1252")
    [document] = read_documents(put(tmp_path / "a.html", data))
    assert document.text == ("river \u201cbank\u201d" if LARGER[name] == "cp1252" else "river")


@pytest.mark.parametrize("name", sorted({*aliases.values(), "idna", "punycode", "undefined"}))
def test_no_character_set_stops_a_build(tmp_path: Path, name: str) -> None:
    data = f"<meta charset={name}><p>river ".encode() + b"bank " * 100 + bytes(range(32, 256))
    [document] = read_documents(put(tmp_path / "a.html", data))
    assert "river" in document.text


@pytest.mark.parametrize(
    ("source", "title", "text"),
    [
        ("<html><head><title>T</title><p>Hello river", "T", "Hello river"),
        ("<html><head><title>T</title><meta name=x><p>Hello river</html>", "T", "Hello river"),
        ("<head><title>T</title><h1>River</h1>text", "T", "# River\n\ntext"),
        ("<head><title>T</title>Hello <b>river</b>", "T", "Hello river"),
        ("<head><link rel=x><base href=y>\n<style>p {}</style><div>river</div>", "", "river"),
        ("<head><script>if (a<b) '<p>no</p>'</script><noscript><style></style></noscript>river", "", "river"),
        ("<head><script>no</script><title>T</title></head>river<p>bank", "T", "river\n\nbank"),
        ("<head><noscript><img src=x></head><p>river", "", "river"),
        ("<head><template><p>no</head><body>river", "", "river"),
        ("<head><meta></head>\n<p>a<svg><title>icon</title><text>no</text></svg>b", "", "ab"),
        ("<title>T</title><p>Hello", "T", "Hello"),
        ("<p>text<head>more</head>end", "", "textmoreend"),
        ("<header>river</header><p>bank", "", "river\n\nbank"),
        ("<ul><li>a<li>b</ul><dl><dt>t<dd>d</dl>end", "", "- a\n- b\n\nt\n\nd\n\nend"),
        ("<table><caption>c<thead><tr><th>a<th>b<tbody><tr><td>1<td>2</table>", "", "c\n\na\tb\n\n1\t2"),
        ("<p>a<noscript>no</noscript>b<script>no</script>c<style>no</style>d", "", "abcd"),
        ("<body><svg><p>no</head>no</svg>river", "", "river"),
    ],
)
def test_tags_that_may_be_omitted(source: str, title: str, text: str) -> None:
    assert read_html(source) == (title, text)


@pytest.mark.parametrize(
    "pieces", ["<svg> </b>", "<object> </td>", "<svg> </object>", "<template> <title>", "<head> </head>"]
)
def test_deeply_nested_pages_are_read_in_no_time(pieces: str) -> None:
    first, second = pieces.split()
    began = time.process_time()
    read_html(first * 80_000 + second * 80_000)
    read_html((first + second) * 80_000)
    assert time.process_time() - began < 10.0


@pytest.mark.parametrize(
    ("source", "title", "text"),
    [
        ("<p>a<!-- no --><b>river</b><!-->bank<!--->steep<!-- no --!>wide", "", "ariverbanksteepwide"),
        ("<p>river<!-- never closed <b>bank</b>", "", "river never closed bank"),
        ("<script>if (a <!--b) x = '</b>';</script><p>river<!-- no -->", "", "river"),
        ("<style>p { x: '<!--' }</style><p>river", "", "river"),
        ("<title>Rivers <!-- and <b>banks</b></title><p>river", "Rivers <!-- and <b>banks</b>", "river"),
        ("<p><textarea>a <!-- b <i>c</textarea> river", "", "a <!-- b <i>c river"),
        ('<p title="a <!-- b > c">river</p><p>bank<!-- no --></p>', "", "river\n\nbank"),
        ("<p title = '<!--'>river<!-- ' -->bank", "", "riverbank"),
        ('<p title="never closed>river</p><!-- no --><p>bank', "", '<p title="never closed>river\n\nbank'),
        ("<script>var never = '<!-- closed'; river", "", ""),
        ("3 < 4 <!-- no --> and 5 > 4", "", "3 < 4 and 5 > 4"),
    ],
)
def test_comments_begin_only_where_browsers_see_them(source: str, title: str, text: str) -> None:
    assert read_html(source) == (title, text)


@pytest.mark.parametrize(
    "piece", ["<a ='", '<a ="', "<p = ", "<!--", "<script>", "<script/>", "<title>a", "<a b='>"]
)
def test_pages_of_one_repeated_mark_are_read_in_no_time(piece: str) -> None:
    began = time.process_time()
    read_html(piece * 200_000)
    read_html(piece * 200_000 + ">")
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "page",
    [
        f"<p>river <a {'bc ' * 100_000}>bank</a>",
        f"<p>river <a b=c=' d='> ' {'bc ' * 100_000}>bank",
        f"<p>river </a {'bc ' * 100_000}>bank",
        "ab<b>" * 60_000,
        "<p>a" * 60_000,
    ],
)
def test_many_attributes_and_tags_take_little_memory(page: str) -> None:
    tracemalloc.start()
    try:
        _, text = read_html(page)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert text
    assert peak < 10 * len(page)


def test_letters_beyond_ascii_make_no_tag() -> None:
    assert read_html("<p><\u017fcript >river</p>") == ("", "<\u017fcript >river")
