"""A system that starts no further threads, as under `ulimit -u` or the limit of a container."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from coil.compiled import import_undisturbed
from coil.errors import CoilError, TooLittleMemory
from coil.storage.overlap import Background, read_ahead
from coil.tokens import tokenizer
from coil.vectors import onnx_encoder


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.mark.usefixtures("full")
def test_the_error_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(TooLittleMemory, match="no thread could be started") as caught:
        import_undisturbed("colorsys")
    assert "ulimit -u" in caught.value.remedy
    with pytest.raises(TooLittleMemory):
        next(read_ahead(iter([1])))
    background = Background[int]()
    for _ in range(2):
        with pytest.raises(TooLittleMemory):
            background.start(lambda: 1)


def test_work_goes_on_when_threads_are_available_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Background[int]() as background:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(TooLittleMemory):
                background.start(lambda: 1)
        background.start(lambda: 2)
        assert background.result() == 2


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("ThreadPoolBuildError { kind: IOError(Os { code: 11 }) }", "TooLittleMemory"),
        ("expected value at line 1", "TokenizerMismatch"),
    ],
)
def test_a_tokenizer_without_threads_is_not_called_damaged(message: str, kind: str) -> None:
    with pytest.raises(CoilError) as caught, tokenizer._named("tokenizer.json"):
        raise ValueError(message)
    assert type(caught.value).__name__ == kind


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("env.cc:327 onnxruntime::PosixThread::PosixThread(const char*, int)", "TooLittleMemory"),
        ("Protobuf parsing failed", "ModelError"),
    ],
)
def test_an_encoder_without_threads_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str, kind: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(onnx_encoder.load_onnxruntime(), "InferenceSession", refuse)
    with pytest.raises(CoilError) as caught:
        onnx_encoder.open_session(tmp_path / "model.onnx")
    assert type(caught.value).__name__ == kind
