"""Checks of an installation: the native core, the model, and the speed of this machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import platform
import time
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coil.errors import CoilError, reason_of
from coil.hits.searcher import Searcher
from coil.metrics.machine import describe_machine, versions
from coil.scores.native import load_native
from coil.texts.values import Document
from coil.vectors.encoder import Encoder
from coil.vectors.model_files import bundled_model, resolve_folder
from coil.vectors.onnx_encoder import OnnxEncoder

PACKAGE = "coil-ir"
REINSTALL = "pip install --force-reinstall coil-ir"
DOCUMENTS = 100_000  # synthetic, to measure the speed of a search
SECONDS = 0.5  # for each measurement of the encoder
SLOW_MS = 250.0  # per query; about 1 is normal
_EXTRAS = {
    "train": "accelerate", "eval": "ir_measures", "serve": "fastapi", "client": "httpx", "readers": "pyarrow",
    "pdf": "pypdf", "docx": "docx", "watch": "watchfiles", "pandas": "pandas", "irds": "ir_datasets",
    "langchain": "langchain_core", "llama-index": "llama_index", "haystack": "haystack",
    "pyterrier": "pyterrier", "mteb": "mteb", "mcp": "mcp",
}  # fmt: skip
_RIVER = "The bank of the river was steep, and kingfishers nested in it."
_TEXTS = (
    _RIVER,
    "The central bank raised its interest rates again.",
    "Otters sleep in holes beside a stream.",
)
_QUERY = "steep banks of a river"


@dataclass(frozen=True)
class Finding:
    """The result of one check; `remedy` says what to do if it is not `ok`."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def examine(model: str | Path | None = None) -> Iterator[Finding]:
    """Run all checks, one after another; `model` None means the bundled model."""
    machine = describe_machine()
    version = versions(PACKAGE)[PACKAGE] or "not installed as a package"
    yield Finding("coil", True, f"{version}, Python {platform.python_version()}")
    memory = f", {machine['memory_gib']:g} GiB of memory" if machine["memory_gib"] else ""
    yield Finding("machine", True, f"{machine['system']}, {machine['cpu']}, {machine['cores']} cores{memory}")
    core = _checked("native core", _check_core)
    yield core
    found = _checked("model", lambda: _check_model(model))
    yield found
    if found.ok:
        encoder = OnnxEncoder(model)
        yield _checked("search", lambda: _check_search(encoder))
        yield _checked("encoding speed", lambda: _measure_encoding(encoder))
    if core.ok:
        yield _checked("search speed", _measure_search)
    installed = [name for name, package in _EXTRAS.items() if importlib.util.find_spec(package) is not None]
    yield Finding("extras", True, ", ".join(installed) or "none installed")


def _checked(name: str, check: Callable[[], Finding]) -> Finding:
    """Run a check; an exception becomes a finding."""
    try:
        return check()
    except CoilError as error:
        return Finding(name, False, error.reason, error.remedy or REINSTALL)
    except Exception as error:  # a damaged installation may raise anything
        return Finding(name, False, f"{type(error).__name__}: {reason_of(error)[:200]}", REINSTALL)


def _check_core() -> Finding:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the finding says the same
        native = load_native()
    if native is None:
        return Finding(
            "native core",
            False,
            "not installed: searches use NumPy and are many times slower",
            "install a C++ compiler, then reinstall coil-ir",
        )
    best, *others = native.instruction_sets()
    detail = f"{best} (also available: {', '.join(others)})" if others else best
    return Finding("native core", True, detail)


def _check_model(model: str | Path | None) -> Finding:
    folder = resolve_folder(model)
    encoder = OnnxEncoder(folder)
    config = encoder.config
    shape = f"{config.kind}, n_t = {config.n_t}, n_c = {config.n_c}"
    if folder.resolve() != bundled_model():
        return Finding("model", True, f"{folder} loads: {shape}")
    damaged = damaged_files(folder)
    if damaged:
        names = ", ".join(path.name for path in damaged)
        return Finding("model", False, f"damaged files in {folder}: {names}", REINSTALL)
    checked = "checksums match" if damaged is not None else "loads; no checksums in an editable install"
    return Finding("model", True, f"bundled, {checked}: {shape}")


def damaged_files(folder: Path, package: str = PACKAGE) -> list[Path] | None:
    """The files of the package in this folder that are missing or have changed since installation.

    None if the installer recorded no checksums.
    """
    try:
        recorded = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    inside = [(Path(str(of.locate())).resolve(), of.hash) for of in recorded]
    known = [(path, of) for path, of in inside if of is not None and folder.resolve() in path.parents]
    return [path for path, of in known if not _is_as_recorded(path, of.mode, of.value)] if known else None


def _is_as_recorded(path: Path, mode: str, value: str) -> bool:
    if not path.is_file():
        return False
    digest = hashlib.new(mode, path.read_bytes()).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode() == value


def _check_search(encoder: Encoder) -> Finding:
    """Search three texts; any usable English model finds the right one."""
    documents = [Document(str(number), text) for number, text in enumerate(_TEXTS)]
    hits = Searcher.build(encoder, documents).search(_QUERY)
    if not hits or hits[0].text != _RIVER:
        return Finding(
            "search",
            False,
            f"{_QUERY!r} does not find the right text: the model is damaged or not for English",
            REINSTALL,
        )
    return Finding("search", True, f"{_QUERY!r} finds the right text, score {hits[0].score:.2f}")


def _measure_encoding(encoder: Encoder) -> Finding:
    queries = _rate(lambda: [*encoder.encode_queries([_QUERY])])
    documents = _rate(lambda: [*encoder.encode_documents(_TEXTS)]) * len(_TEXTS)
    detail = f"{1000 / queries:.1f} ms per query, {documents:,.0f} short documents per second"
    return Finding("encoding speed", True, detail)


def _rate(work: Callable[[], object]) -> float:
    """Calls per second."""
    work()
    began, calls = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        work()
        calls += 1
    return calls / (time.perf_counter() - began)


def _measure_search() -> Finding:
    from coil.metrics.speed import measure_speed

    [timing, *_] = measure_speed(DOCUMENTS, rounds=5, threads=1, with_numpy=False)
    detail = (
        f"{timing.search_ms:.1f} ms per exhaustive query of {DOCUMENTS:,} documents on one thread, "
        f"{timing.share:.0%} of the roofline"
    )
    if timing.search_ms > SLOW_MS:
        return Finding(
            "search speed", False, detail, "the machine may be overloaded; try again when it is idle"
        )
    return Finding("search speed", True, detail)
