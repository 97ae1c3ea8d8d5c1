"""The demo: what it reads, that reading is harmless, and that it encodes only once."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from coil.cli import demo as cli_demo
from coil.demo.demo import INDEX_FOLDER, MANIFEST_FILE, prepare, summary_span
from coil.demo.standard_library import DOCSTRING_CHARACTERS, read_standard_library, shorten
from coil.errors import OutputError
from coil.indexes.opening import open_index
from coil.texts.values import Document
from coil.tokens.profile import ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.encoder import Encoder
from tests.tiny import make_model

# What must not be imported: it opens a browser, prints a poem, wants a display, or takes the terminal.
HARMFUL = [
    "antigravity",
    "this",
    "idlelib",
    "turtledemo",
    "turtle",
    "tkinter",
    "_tkinter",
    "readline",
    "test",
]


@pytest.fixture(scope="module")
def library() -> list[Document]:
    return read_standard_library()


# --- the documents ---------------------------------------------------------------------------------------


def test_there_are_thousands_of_entries_with_one_id_each(library: list[Document]) -> None:
    assert len(library) >= 5000
    assert max(Counter(document.doc_id for document in library).values()) == 1
    kinds = Counter(document.fields["kind"] for document in library)
    assert set(kinds) == {"module", "class", "function", "method", "property"}
    assert min(kinds.values()) > 100


@pytest.mark.parametrize(
    ("doc_id", "kind", "module", "signature", "words"),
    [
        (
            "asyncio.wait_for",
            "function",
            "asyncio",
            "async asyncio.wait_for(fut, timeout)",
            "cancels the task",
        ),
        ("str.split", "method", "builtins", "str.split(sep=None, maxsplit=-1)", "separator"),
        ("math.sqrt", "function", "math", "math.sqrt(x, /)", "square root"),
        ("os.path.join", "function", "os.path", "os.path.join(", "Join two or more pathname"),
        (
            "collections.deque.appendleft",
            "method",
            "collections",
            "collections.deque.appendleft",
            "left side",
        ),
        (
            "subprocess.Popen",
            "class",
            "subprocess",
            "class subprocess.Popen(args, bufsize=-1",
            "child program",
        ),
        ("json", "module", "json", "module json", "JavaScript"),
        ("unittest.TestCase.assertEqual", "method", "unittest", "unittest.TestCase.assertEqual(", "equal"),
    ],
)
def test_an_entry_is_named_as_one_would_type_it(
    library: list[Document], doc_id: str, kind: str, module: str, signature: str, words: str
) -> None:
    [document] = [document for document in library if document.doc_id == doc_id]
    assert document.fields == {"kind": kind, "module": module}
    assert document.text.startswith(signature)
    assert words in document.text


def test_what_a_package_reexports_stands_there_only(library: list[Document]) -> None:
    ids = {document.doc_id for document in library}
    assert "asyncio.tasks.wait_for" not in ids
    assert "json.decoder.JSONDecoder" not in ids
    assert not any(part.startswith("_") for doc_id in ids for part in doc_id.split("."))


def test_texts_are_of_a_sensible_size(library: list[Document]) -> None:
    assert max(len(document.text) for document in library) <= DOCSTRING_CHARACTERS + 300
    assert all(document.text.partition("\n\n")[2].strip() for document in library)
    assert shorten("one two three", 9) == "one two …"
    assert shorten("one two", 9) == "one two"


def test_reading_is_harmless_silent_quick_and_the_same_every_time() -> None:
    program = (
        "import hashlib, sys, time; from coil.demo.standard_library import read_standard_library\n"
        "began = time.monotonic(); documents = read_standard_library(); took = time.monotonic() - began\n"
        "digest = hashlib.sha256(repr(documents).encode()).hexdigest()\n"
        "print(repr((sorted(sys.modules), digest, took)))\n"
    )
    # Warnings as errors: a deprecated module that complains would end the program.
    command = [sys.executable, "-W", "error", "-c", program]
    digests = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60, env=environment
        )
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1
        modules, digest, took = ast.literal_eval(done.stdout)
        digests.add(digest)
    assert not set(HARMFUL) & {module.partition(".")[0] for module in modules}
    assert not any(module.endswith(".__main__") for module in modules)
    assert took < 30  # about 3 s on an idle machine
    assert len(digests) == 1


# --- the saved searcher ----------------------------------------------------------------------------------

DOCUMENTS = [
    Document(
        "task.cancel", "task.cancel()\n\nCancel a task\nthat takes too long.\n\nMore.", {"kind": "method"}
    ),
    Document("file.read", "file.read(n)\n\nRead a file line by line.", {"kind": "method"}),
    Document("bank", "module bank\n\nThe river bank.", {"kind": "module"}),
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return make_encoder(tmp_path_factory.mktemp("models"), seed=0)


def make_encoder(folder: Path, seed: int) -> Encoder:
    from coil.vectors.torch_encoder import TorchEncoder

    config = ModelConfig(n_t=8, n_c=6, profile=ScoringProfile(query_length=32, document_length=64))
    return TorchEncoder(make_model(folder / f"m{seed}", config, seed=seed))


def never() -> Sequence[Document]:
    raise AssertionError("the documents are read again")


def test_the_second_run_reuses_the_first(encoder: Encoder, tmp_path: Path) -> None:
    told: list[int] = []
    first = prepare(encoder, tmp_path / "new" / "demo", lambda: DOCUMENTS, lambda total: told.append)
    assert not first.reused
    assert sum(told) == len(DOCUMENTS)
    assert sorted(p.name for p in (tmp_path / "new" / "demo").iterdir()) == sorted(
        [INDEX_FOLDER, MANIFEST_FILE]
    )
    second = prepare(encoder, tmp_path / "new" / "demo", never)
    assert second.reused
    assert second.note == ""
    assert [second.index.document(d.doc_id) for d in DOCUMENTS] == DOCUMENTS
    assert second.index.search("cancel a task") == first.index.search("cancel a task")


def test_another_model_or_python_starts_over(encoder: Encoder, tmp_path: Path) -> None:
    prepare(encoder, tmp_path / "demo", lambda: DOCUMENTS)
    other = prepare(make_encoder(tmp_path, seed=5), tmp_path / "demo", lambda: DOCUMENTS)
    assert not other.reused
    assert other.note == ""
    assert not prepare(encoder, tmp_path / "demo", lambda: DOCUMENTS).reused
    manifest = tmp_path / "demo" / MANIFEST_FILE
    value = json.loads(manifest.read_text())
    value["key"]["python"] = "2.7"
    manifest.write_text(json.dumps(value))
    again = prepare(encoder, tmp_path / "demo", lambda: DOCUMENTS)
    assert not again.reused
    assert again.note == ""


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
@pytest.mark.parametrize("name", [f"{INDEX_FOLDER}/segments/*.lists", MANIFEST_FILE])
def test_a_damaged_cache_is_made_again(encoder: Encoder, tmp_path: Path, name: str, damage: str) -> None:
    prepare(encoder, tmp_path, lambda: DOCUMENTS).index.close()
    [path] = tmp_path.glob(name)
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "flip":
        path.write_bytes(content[:-9] + bytes([content[-9] ^ 0x15]) + content[-8:])
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    again = prepare(encoder, tmp_path, lambda: DOCUMENTS)
    assert not again.reused
    without_manifest = (name, damage) == (MANIFEST_FILE, "gone")  # looks like a first run, and is one
    assert ("damaged" in again.note) != without_manifest
    assert prepare(encoder, tmp_path, never).reused


def test_an_interruption_costs_only_what_was_not_committed(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coil.demo.demo.AT_ONCE", 1)
    told: list[int] = []

    def interrupt(done: int) -> None:
        told.append(done)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(encoder, tmp_path, lambda: DOCUMENTS, lambda total: interrupt)
    left: list[int] = []

    def note(total: int) -> object:
        left.append(total)
        return lambda done: None

    finished = prepare(encoder, tmp_path, lambda: DOCUMENTS, note)  # type: ignore[arg-type]
    assert left == [1]
    assert len(finished.index) == 3
    assert prepare(encoder, tmp_path, never).reused


def test_a_folder_that_cannot_be_written_is_told_before_the_long_part(
    encoder: Encoder, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with pytest.raises(OutputError, match="cannot be saved") as caught:
        prepare(encoder, blocked / "demo", never)
    assert "--cache" in caught.value.remedy


# --- what a person sees ----------------------------------------------------------------------------------


def test_it_answers_and_explains(
    encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = ["cancel a task that takes too long", "   "]
    cli_demo.run_demo(encoder, questions, 2, tmp_path, None, lambda: DOCUMENTS)
    out, err = capsys.readouterr()
    assert out.startswith("3 entries from the docs of Python ")
    assert f"saved in {tmp_path}" in err
    assert questions[0] in out
    assert "Cancel a task that takes too long." in out
    assert "  no hits" in out
    assert "\nWhy " in out
    assert "\x1b" not in out + err
    cli_demo.run_demo(encoder, questions, 2, tmp_path, None, never)
    again = capsys.readouterr()
    assert again.out == out
    assert f"using the index saved in {tmp_path}" in again.err


def test_matched_words_are_shaded(
    encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli_demo.run_demo(encoder, ["cancel"], 1, tmp_path, lambda text, share: f"<{text}>", lambda: DOCUMENTS)
    out = capsys.readouterr().out
    assert "task.<cancel>" in out
    assert "<Cancel> a task that takes too long." in out
    assert cli_demo.shade("x", 0.0) != cli_demo.shade("x", 1.0) != "x"


def test_the_summary_is_the_first_paragraph() -> None:
    start, end = summary_span(DOCUMENTS[0].text)
    assert DOCUMENTS[0].text[start:end] == "Cancel a task\nthat takes too long."
    assert summary_span("no signature") == (0, 12)


def test_the_cache_folder_is_the_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cli_demo.default_cache() == tmp_path / ".cache" / "coil" / "demo"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cli_demo.default_cache() == tmp_path / "xdg" / "coil" / "demo"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cli_demo.default_cache() == tmp_path / ".cache" / "coil" / "demo"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cli_demo.default_cache() == tmp_path / "Library" / "Caches" / "coil" / "demo"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cli_demo.default_cache() == tmp_path / "local" / "coil" / "demo"


def test_the_page_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.hash_encoder import HashEncoder

    served: list[tuple[object, ...]] = []
    monkeypatch.setattr(cli_demo, "serve", lambda *given, **named: served.append((*given, named)))
    encoder = HashEncoder()
    texts = [Document("a", "river bank"), Document("b", "money loan")]
    cli_demo.serve_demo(encoder, tmp_path, 0, lambda: texts)
    [(folders, host, port, _, given, named)] = served
    assert (folders, host, port, given) == ([tmp_path / INDEX_FOLDER], "127.0.0.1", 0, encoder)
    assert named == {"open_browser": True}
    with open_index(tmp_path / INDEX_FOLDER, encoder) as index:
        assert len(index) == 2
