"""The encoder on ONNX Runtime, used for search and indexing. It does not need torch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from coil.compiled import compiled_code, import_undisturbed
from coil.errors import MissingModelFile, ModelError, OptionMismatch, WrongShape, out_of_threads
from coil.forks import cached, make_lock
from coil.interruptions import let_through
from coil.tokens.model_json import check_file
from coil.vectors.encoder import Batch, BatchEncoder
from coil.vectors.model_files import ONNX_FILES, ModelFiles, resolve_folder, stamp_of
from coil.vectors.parallel import MOST_ENCODING, map_on_threads, usable_cores
from coil.vectors.token_vectors import TokenVectors

Precision = Literal["fp32", "int8"]
HIDDEN = "hidden"  # the output whose mean is the sentence vector, in files that have it
# Few tokens per batch, so that their activations stay in the processor's cache. On one EPYC core, documents
# per CPU second were 59, 57, 52, 44 and 34 with 256, 512, 1024, 2048 and 4096 (96 docstrings, one trial).
BATCH_TOKENS = 512
_REMEDY = "recreate the ONNX files with `coil export`"
_EXTERNAL = b"\n\x08location\x12"  # of a weight in another file: key 1 is "location", value 2 its name


class OnnxEncoder(BatchEncoder):
    """Runs model.int8.onnx or model.onnx from a model folder."""

    def __init__(
        self,
        model: str | Path | None = None,
        precision: Precision | None = None,
        threads: int = 0,
        batch_tokens: int = BATCH_TOKENS,
        bucketed: bool = True,
    ) -> None:
        """`precision` None means int8 if the folder has it; `threads` 0 means one per core."""
        folder = resolve_folder(model).absolute()  # files are read later: the working directory may change
        super().__init__(ModelFiles.load(folder), batch_tokens, bucketed)
        self._path = _onnx_file(folder, precision)
        self._threads = min(threads or usable_cores(), MOST_ENCODING)
        self._sessions: dict[int, Any] = {}  # by the number of threads that share a batch
        self._opening = make_lock()
        self._file = stamp_of(self._path)
        self._batches = 0  # being encoded or waiting to be
        self._counting = make_lock()
        session = self._session(self._threads)
        names = [output.name for output in session.get_outputs()]
        self._outputs = [name for name in names if name != HIDDEN]
        self._has_hidden = HIDDEN in names
        self._check_outputs(session)
        _ENCODERS.add(self)

    def _session(self, threads: int) -> Any:
        """A session of this model. If the file has changed since, one that is already open is used."""
        with self._opening:
            if threads not in self._sessions:
                if self._sessions and stamp_of(self._path) != self._file:
                    return next(iter(self._sessions.values()))
                session = open_session(self._path, threads)
                if stamp_of(self._path) != self._file:
                    raise ModelError(f"{self._path} has changed since it was opened", "start a new process")
                self._sessions.setdefault(threads, session)  # a signal handler may have opened one
            return self._sessions[threads]

    def leave_sessions(self) -> None:
        """Drop the sessions, whose threads do not exist in a forked process; new ones open when needed.

        The old ones are never closed, not even at exit: that would wait for their threads forever.
        """
        for session in self._sessions.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
        self._sessions = {}
        self._batches = 0

    def _check_outputs(self, session: Any) -> None:
        widths = {output.name: (output.shape or [0])[-1] for output in session.get_outputs()}
        inputs = sorted(given.name for given in session.get_inputs())
        if inputs != ["attention_mask", "input_ids"]:
            raise WrongShape(
                f"{self._path} has the inputs {', '.join(inputs)[:200]}; expected attention_mask, input_ids",
                _REMEDY,
            )
        for name, width in (("token_vectors", self.config.n_t), ("sentence_vector", self.config.n_c)):
            if widths.get(name, 0) != width:
                raise WrongShape(
                    f"{self._path} returns {name} of width {widths.get(name, 0)}, but coil.json says {width}",
                    _REMEDY,
                )

    @cached
    def fingerprint(self) -> str:
        """A digest of everything that determines the vectors."""
        return self._files.fingerprint(self._path)

    def _encode_batches(self, batches: Sequence[Batch]) -> Iterable[list[TokenVectors]]:
        """Encode several batches at a time, one per core. A single batch, such as a query, uses all cores."""
        left = len(batches)

        def encode(batch: Batch) -> list[TokenVectors]:
            nonlocal left
            try:
                return self._encode_batch(batch)
            finally:
                with self._counting:
                    self._batches -= 1
                    left -= 1

        with self._counting:
            self._batches += left
        try:
            return map_on_threads(encode, batches, self._threads)
        finally:
            with self._counting:
                self._batches -= left

    def _forward(
        self, input_ids: NDArray[np.int64], mask: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        values = self._run(self._outputs, input_ids, mask)
        named = dict(zip(self._outputs, values, strict=True))
        return named.get("token_vectors"), named.get("sentence_vector")

    def _states(self, input_ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32] | None:
        states: list[NDArray[np.float32]] = self._run([HIDDEN], input_ids, mask) if self._has_hidden else []
        return states[0] if states else None

    def _run(self, outputs: list[str], input_ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Any:
        # Threads that share a batch wait for each other at every layer, and longest if another thread takes
        # one of their cores. So a batch is shared only if it is the only one.
        session = self._session(self._threads if self._batches <= 1 else 1)
        with compiled_code():
            try:
                return session.run(outputs, {"input_ids": input_ids, "attention_mask": mask})
            except Exception as error:  # the exception classes of onnxruntime are not public
                let_through(error)
                raise ModelError(f"{self._path} cannot be run: {str(error)[:300]}", _REMEDY) from error


_ENCODERS: WeakSet[OnnxEncoder] = WeakSet()
_kept: list[OnnxEncoder] = []  # during a fork: it would close encoders that only another thread uses


def _leave_sessions() -> None:
    for encoder in _kept:
        encoder.leave_sessions()
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _kept.extend(_ENCODERS),
        after_in_parent=_kept.clear,
        after_in_child=_leave_sessions,
    )


def load_onnxruntime() -> Any:
    """ONNX Runtime without its telemetry: COIL sends no data anywhere.

    Since version 1.29, importing it starts a thread that uploads data, unless an environment variable is set.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    with suppress(OSError):  # needed to report a lack of memory, and then there is none to load it
        ctypes.CDLL("libgcc_s.so.1")
    onnxruntime: Any = import_undisturbed("onnxruntime")
    onnxruntime.disable_telemetry_events()
    return onnxruntime


def open_session(path: Path, threads: int = 0) -> Any:
    """Load an ONNX file for the CPU; this many threads share a batch."""
    _check_whole(path)
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Threads may spin while a text is encoded, but not between texts, when the search needs the cores.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Work is given to the threads in small portions, so that a busy core delays the others less.
    options.add_session_config_entry("session.dynamic_block_base", "4")
    with compiled_code():
        try:
            return onnxruntime.InferenceSession(
                str(path),
                sess_options=options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["SkipLayerNormFusion"],  # slower than what it replaces, see export.py
                enable_fallback=0,  # to the same provider, with lines on standard output
            )
        except Exception as error:  # the exception classes of onnxruntime are not public
            let_through(error)
            if "PosixThread" in str(error):
                raise out_of_threads("the encoder needs one for each core") from error
            raise ModelError(f"{path} cannot be loaded: {str(error)[:300]}", _REMEDY) from error


def _check_whole(path: Path) -> None:
    """Refuse weights in other files: the fingerprint would not tell when they change."""
    with suppress(OSError, ValueError), path.open("rb") as file:  # if it cannot be read, loading it says why
        with mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            found = content.find(_EXTERNAL)
        if found >= 0:
            raise ModelError(f"{path} has weights in other files (external data)", "save it as one file")


def _onnx_file(folder: Path, precision: Precision | None) -> Path:
    if precision is not None and precision not in ONNX_FILES:
        raise OptionMismatch(f"the precision is {precision!r}; expected fp32 or int8")
    wanted = [precision] if precision is not None else ["int8", "fp32"]
    for name in wanted:
        path = folder / ONNX_FILES[name]
        if path.is_file():
            check_file(path, _REMEDY)
            return path
    missing = folder / ONNX_FILES[wanted[0]]
    raise MissingModelFile(f"{missing} is missing", f"create it with `coil export {folder}`")
