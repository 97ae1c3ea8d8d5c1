"""Test collections in every layout: BEIR, MS MARCO's own files, ir_datasets, TREC topics."""

from __future__ import annotations

import gzip

import pytest

from coil.errors import BadLine, InputError
from coil.texts.collections import find_collection
from coil.texts.corpora import read_documents
from coil.texts.queries import read_queries
from coil.texts.values import Document, Query
from tests.files import put

PASSAGES = b"0\tThe bank of the river\n1\tA bank\tgives loans\n2\tMoney\n"
QUERIES = b"10\triver bank\n11\tloan\n12\tnobody judged this\n"
QRELS = b"10\t0\t0\t1\n11\t0\t1\t1\n"
RIVER, LOAN = Query("10", "river bank"), Query("11", "loan")
TOPICS = """\
<top>

<num> Number: 301
<title> International Organized Crime

<desc> Description:
Identify organizations that participate
in international criminal activity.

<narr> Narrative:
A relevant document must name it.

</top>
<top>
<num>302</num><title></title>
<desc> Poliomyelitis and post-polio </desc>
</top>
"""


def test_beir(tmp_path):
    put(tmp_path / "corpus.jsonl.gz", gzip.compress(b'{"_id": "a", "title": "T", "text": "x"}\n'))
    put(tmp_path / "queries.jsonl", '{"_id": "q", "text": "what"}\n{"_id": "p", "text": "unjudged"}\n')
    put(tmp_path / "qrels/test.tsv", "query-id\tcorpus-id\tscore\nq\ta\t1\n")
    put(tmp_path / "qrels/dev.tsv", "query-id\tcorpus-id\tscore\np\ta\t2\n")
    found = find_collection(str(tmp_path))
    assert found.name == tmp_path.name
    assert [d.text for d in found.documents()] == ["T\nx"]
    assert found.judged() == ([Query("q", "what")], {"q": {"a": 1}})
    other = find_collection(str(tmp_path), split="dev")
    assert other.name == f"{tmp_path.name}/dev"
    assert other.judged() == ([Query("p", "unjudged")], {"p": {"a": 2}})
    with pytest.raises(InputError, match=r"no qrels/train\.tsv"):
        find_collection(str(tmp_path), split="train")


def test_marco_passages(tmp_path):
    put(tmp_path / "collection.tsv", PASSAGES)
    put(tmp_path / "queries.dev.small.tsv", QUERIES.replace(b"\n", b"\r\n"))
    put(tmp_path / "qrels.dev.small.tsv", QRELS.replace(b"\n", b"\r\n"))
    put(tmp_path / "msmarco-test2019-queries.tsv.gz", gzip.compress(QUERIES))
    put(tmp_path / "2019qrels-pass.txt", b"11 Q0 1 3\n11 Q0 2 0\n")
    found = find_collection(str(tmp_path))
    assert [d.doc_id for d in found.documents()] == ["0", "1", "2"]
    assert [d.text for d in found.documents()][1] == "A bank\tgives loans"
    assert found.judged() == ([RIVER, LOAN], {"10": {"0": 1}, "11": {"1": 1}})
    assert find_collection(str(tmp_path), "trec-dl-2019").judged() == ([LOAN], {"11": {"1": 3, "2": 0}})
    with pytest.raises(InputError, match="no split 'eval'") as caught:
        find_collection(str(tmp_path), "eval")
    assert "trec-dl-2019" in caught.value.remedy


def test_marco_documents(tmp_path):
    lines = b"D1\thttp://a\tBanks\tA bank lends.\r\nD2\thttp://b\t\tRivers.\n"
    put(tmp_path / "msmarco-docs.tsv.gz", gzip.compress(lines))
    put(tmp_path / "msmarco-docdev-queries.tsv", QUERIES)
    put(tmp_path / "msmarco-docdev-qrels.tsv", b"10 0 D2 1\n")
    found = find_collection(str(tmp_path))
    assert list(found.documents()) == [
        Document("D1", "Banks\nA bank lends.", {"url": "http://a", "title": "Banks"}),
        Document("D2", "Rivers.", {"url": "http://b", "title": ""}),
    ]
    assert found.judged() == ([RIVER], {"10": {"D2": 1}})
    with pytest.raises(BadLine, match="line 1: 3 cells, but the header has 4"):
        list(read_documents(put(tmp_path / "broken" / "msmarco-docs.tsv", b"D1\thttp://a\tno body\n")))


def test_parts_named_apart(tmp_path):
    corpus = str(put(tmp_path / "docs.tsv", PASSAGES))
    queries, qrels = (
        str(put(tmp_path / "topics.txt", TOPICS)),
        str(put(tmp_path / "qrels.txt", "301 0 1 1\n")),
    )
    found = find_collection(corpus, queries=queries, qrels=qrels)
    assert found.judged() == ([Query("301", "International Organized Crime")], {"301": {"1": 1}})
    with pytest.raises(InputError, match="is a file") as caught:
        find_collection(corpus, queries=queries)
    assert "qrels" in caught.value.remedy
    with pytest.raises(InputError, match="is missing"):
        find_collection(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"none of corpus\.jsonl, collection\.tsv, msmarco-docs\.tsv"):
        find_collection(str(tmp_path / "empty"))


def test_judged_queries_without_a_text_are_an_error(tmp_path):
    queries = str(put(tmp_path / "q.tsv", QUERIES))
    qrels = str(put(tmp_path / "qrels", QRELS + b"13 0 0 1\n14 0 0 1\n15 0 0 1\n16 0 0 1\n"))
    with pytest.raises(InputError, match=r"4 queries judged in .* are not in .*'13', '14', '15', \.\.\."):
        find_collection(str(put(tmp_path / "c.tsv", PASSAGES)), queries=queries, qrels=qrels).judged()


def test_topics(tmp_path):
    path = put(tmp_path / "topics.301-302", TOPICS.replace("\n", "\r\n"))
    assert list(read_queries(path)) == [
        Query("301", "International Organized Crime"),
        Query("302", "Poliomyelitis and post-polio"),
    ]
    one_line = put(tmp_path / "one", "<top><num>7<title>a b <desc>c</top>")
    assert list(read_queries(one_line)) == [Query("7", "a b")]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<top>\n<num> 1\n<title> a\n", "line 1: the topic has no </top>"),
        ("<top>\n<num> 1\n<title> a\n<top>\n</top>", "line 1: the topic has no </top>"),
        ("<top>\n<title> a\n</top>", "line 1: the topic has no <num>"),
        ("<top>\n<num> Number: \n<title> a\n</top>", "line 1: the topic has no <num>"),
        ("<top>\n<num> 1\n</top>", "neither <title> nor <desc>"),
        ("<top>\n<num> 1\n<title> a\n<title> b\n</top>", "line 4: a second <title>"),
        ("<top>\n1\n</top>", "line 2: expected a tag"),
        ("<top>\n<num> 1\n<title> a\n</top>\nb", "line 5: text between two topics"),
    ],
)
def test_broken_topics(tmp_path, text, reason):
    with pytest.raises(BadLine, match=reason):
        list(read_queries(put(tmp_path / "topics", text)))


def test_two_topics_of_one_number(tmp_path):
    with pytest.raises(InputError, match="duplicate id '301'"):
        list(read_queries(put(tmp_path / "topics", TOPICS.replace("302", "301"))))


def place_marco(home, version=True):
    """A tiny MS MARCO where ir_datasets looks for the downloaded one."""
    if version:  # without it, ir_datasets removes the passages
        put(home / "msmarco-passage/irds_version.txt", "v2")
    put(home / "msmarco-passage/collection.tsv", PASSAGES.replace(b"\tgives", b" gives"))
    put(home / "msmarco-passage/dev/small/queries.tsv", QUERIES)
    put(home / "msmarco-passage/dev/queries.tsv", QUERIES)
    put(home / "msmarco-passage/dev/small/qrels", QRELS.replace(b"\t", b" "))
    put(home / "msmarco-passage/trec-dl-2019/queries.tsv", QUERIES)
    put(home / "msmarco-passage/trec-dl-2019/qrels", b"11 Q0 1 3\n11 Q0 2 0\n")


@pytest.fixture
def irds_home(tmp_path, monkeypatch):
    pytest.importorskip("ir_datasets")
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IR_DATASETS_TMP", str(tmp_path / "tmp"))
    monkeypatch.setenv("IR_DATASETS_DL_TRIES", "1")
    monkeypatch.setenv("IR_DATASETS_DL_TIMEOUT", "1")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens: no test goes to the network
    return tmp_path / "home"


IRDS_CODE = """
import json, sys
from coil.errors import CoilError
from coil.texts.collections import find_collection
try:
    found = find_collection(sys.argv[1])
    queries, judgements = found.judged()
    print(json.dumps([[d.doc_id for d in found.documents()], [q.text for q in queries], judgements]))
except CoilError as error:
    print(error)
"""


@pytest.fixture
def read_irds(irds_home):
    """Read a dataset in a process of its own: ir_datasets looks for its folder once, when it is imported."""
    import json
    import subprocess
    import sys

    def read(name):
        done = subprocess.run(
            [sys.executable, "-c", IRDS_CODE, name], capture_output=True, text=True, check=True, timeout=120
        )
        return json.loads(done.stdout) if done.stdout.startswith("[") else done.stdout

    return read


@pytest.mark.parametrize(
    ("name", "texts", "judgements"),
    [
        ("msmarco-passage/dev/small", ["river bank", "loan"], {"10": {"0": 1}, "11": {"1": 1}}),
        ("msmarco-passage/trec-dl-2019/judged", ["loan"], {"11": {"1": 3, "2": 0}}),
    ],
)
def test_irds_in_the_layout_of_marco(irds_home, read_irds, name, texts, judgements):
    place_marco(irds_home)
    assert read_irds(f"irds:{name}") == [["0", "1", "2"], texts, judgements]


def test_irds_in_the_layout_of_marco_documents(irds_home, read_irds):
    texts = "".join(
        f"<DOC>\n<DOCNO>{doc_id}</DOCNO>\n<TEXT>\nhttp://x/{doc_id}\n{title}\n{body}\n</TEXT>\n</DOC>\n"
        for doc_id, title, body in [("D1", "Banks", "A bank lends."), ("D2", "Rivers", "They flow.")]
    )
    folder = irds_home / "msmarco-document"
    put(folder / "collection.tsv.gz", gzip.compress(texts.encode()))
    put(folder / "dev/queries.tsv.gz", gzip.compress(QUERIES))
    put(folder / "dev/qrels.gz", gzip.compress(b"10 0 D2 1\n"))
    put(folder / "trec-dl-2019/queries.tsv.gz", gzip.compress(QUERIES))
    put(folder / "trec-dl-2019/qrels", b"11 Q0 D1 3\n")
    both = ["D1", "D2"]
    assert read_irds("irds:msmarco-document/dev") == [both, ["river bank"], {"10": {"D2": 1}}]
    assert read_irds("irds:msmarco-document/trec-dl-2019/judged") == [both, ["loan"], {"11": {"D1": 3}}]


def test_irds_offline_says_what_to_place_where(irds_home, read_irds):
    said = read_irds("irds:msmarco-passage/dev/small")
    assert "the qrels of irds:msmarco-passage/dev/small are not on this machine" in said
    assert f"place its file at {irds_home / 'msmarco-passage/dev/small/qrels'}" in said
    assert "IR_DATASETS_HOME" in said
    assert "https://ir-datasets.com/msmarco-passage" in said
    place_marco(irds_home, version=False)  # what is placed now is read, and not removed
    assert read_irds("irds:msmarco-passage/dev/small")[0] == ["0", "1", "2"]


def test_irds_has_no_splits():
    with pytest.raises(InputError, match="no splits"):
        find_collection("irds:cranfield", split="dev")
