"""The encoder on ONNX Runtime, used for search and indexing. It does not need torch."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from coil.compiled import compiled_code, import_undisturbed
from coil.errors import MissingModelFile, ModelError, OptionMismatch, WrongShape
from coil.forks import cached, make_lock
from coil.vectors.encoder import BatchEncoder
from coil.vectors.model_files import ONNX_FILES, ModelFiles, resolve_folder
from coil.vectors.parallel import MOST_AT_ONCE, usable_cores

Precision = Literal["fp32", "int8"]
HIDDEN = "hidden"  # the output that sentence vectors are a mean of, in files that have it
# Few tokens a batch: their activations stay in the processor's own cache. On one EPYC core, documents per
# CPU second were 59, 57, 52, 44 and 34 with 256, 512, 1024, 2048 and 4096 (96 docstrings, one trial).
BATCH_TOKENS = 512
_REMEDY = "recreate the ONNX files with `coil export`"


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
        """`precision` None uses int8 if the folder has it. `threads` is how many batches are encoded at the
        same time; 0 uses every core."""
        folder = resolve_folder(model)
        at_once = min(threads or usable_cores(), MOST_AT_ONCE)
        super().__init__(ModelFiles.load(folder), batch_tokens, bucketed, at_once)
        self._path = _onnx_file(folder, precision)
        self._open_session: Any = None
        self._opening = make_lock()
        session = self._session
        names = [output.name for output in session.get_outputs()]
        self._outputs = [name for name in names if name != HIDDEN]
        self._has_hidden = HIDDEN in names
        self._check_outputs(session)
        _ENCODERS.add(self)

    @property
    def _session(self) -> Any:
        with self._opening:
            if self._open_session is None:
                self._open_session = open_session(self._path)
            return self._open_session

    def leave_session(self) -> None:
        """Open a new session when it is next needed, in a forked process: another thread may have been using
        this one. It is never closed."""
        if self._open_session is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._open_session))
            self._open_session = None

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
        session = self._session
        with compiled_code():
            try:
                return session.run(outputs, {"input_ids": input_ids, "attention_mask": mask})
            except Exception as error:  # onnxruntime raises classes of its own, none of them public
                raise ModelError(f"{self._path} cannot be run: {str(error)[:300]}", _REMEDY) from error


_ENCODERS: WeakSet[OnnxEncoder] = WeakSet()
_kept: list[OnnxEncoder] = []  # while a fork lasts: those that only another thread uses would be closed by it


def _leave_sessions() -> None:
    for encoder in _kept:
        encoder.leave_session()
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _kept.extend(_ENCODERS),
        after_in_parent=_kept.clear,
        after_in_child=_leave_sessions,
    )


def load_onnxruntime() -> Any:
    """The runtime without its telemetry: a search library sends nothing anywhere.

    Since version 1.29, importing it starts a thread that uploads data; only an environment variable prevents
    that.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    onnxruntime: Any = import_undisturbed("onnxruntime")
    onnxruntime.disable_telemetry_events()
    return onnxruntime


def open_session(path: Path) -> Any:
    """Load an ONNX file for the CPU. It starts no threads: a batch is encoded by the thread that asks."""
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    with compiled_code():
        try:
            return onnxruntime.InferenceSession(
                str(path),
                sess_options=options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["SkipLayerNormFusion"],  # slower than what it replaces, see export.py
            )
        except Exception as error:  # onnxruntime raises classes of its own, none of them public
            raise ModelError(f"{path} cannot be loaded: {str(error)[:300]}", _REMEDY) from error


def _onnx_file(folder: Path, precision: Precision | None) -> Path:
    if precision is not None and precision not in ONNX_FILES:
        raise OptionMismatch(f"the precision is {precision!r}; expected fp32 or int8")
    wanted = [precision] if precision is not None else ["int8", "fp32"]
    for name in wanted:
        path = folder / ONNX_FILES[name]
        if path.is_file():
            return path
    missing = folder / ONNX_FILES[wanted[0]]
    raise MissingModelFile(f"{missing} is missing", f"create it with `coil export {folder}`")
