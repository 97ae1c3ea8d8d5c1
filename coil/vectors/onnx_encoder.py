"""The encoder on ONNX Runtime: what searching and indexing use. Needs no torch."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coil.compiled import compiled_code
from coil.errors import MissingModelFile, ModelError, OptionMismatch, WrongShape
from coil.vectors.encoder import BatchEncoder
from coil.vectors.model_files import ONNX_FILES, ModelFiles, resolve_folder

Precision = Literal["fp32", "int8"]
# Few tokens a batch: their activations stay in the processor's own cache. On one EPYC core, documents per
# CPU second were 59, 57, 52, 44 and 34 with 256, 512, 1024, 2048 and 4096 (96 docstrings, one trial).
BATCH_TOKENS = 512
_REMEDY = "make the ONNX files again with `coil export`"


class OnnxEncoder(BatchEncoder):
    """Runs model.int8.onnx or model.onnx of a model folder."""

    def __init__(
        self,
        model: str | Path | None = None,
        precision: Precision | None = None,
        threads: int = 0,
        batch_tokens: int = BATCH_TOKENS,
        bucketed: bool = True,
    ) -> None:
        """`precision` None takes int8 where the folder has it; `threads` 0 uses every core."""
        folder = resolve_folder(model)
        super().__init__(ModelFiles.load(folder), batch_tokens, bucketed)
        self._path = _onnx_file(folder, precision)
        self._session = open_session(self._path, threads)
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._check_outputs()

    def _check_outputs(self) -> None:
        widths = {output.name: (output.shape or [0])[-1] for output in self._session.get_outputs()}
        inputs = sorted(given.name for given in self._session.get_inputs())
        if inputs != ["attention_mask", "input_ids"]:
            raise WrongShape(
                f"{self._path} takes {', '.join(inputs)[:200]}; expected attention_mask, input_ids", _REMEDY
            )
        for name, width in (("token_vectors", self.config.n_t), ("sentence_vector", self.config.n_c)):
            if widths.get(name, 0) != width:
                raise WrongShape(
                    f"{self._path} gives {name} of width {widths.get(name, 0)}, but coil.json says {width}",
                    _REMEDY,
                )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides the vectors."""
        return self._files.fingerprint(self._path)

    def _forward(
        self, input_ids: NDArray[np.int64], mask: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        try:
            values = self._session.run(self._outputs, {"input_ids": input_ids, "attention_mask": mask})
        except Exception as error:  # onnxruntime raises classes of its own, none of them public
            raise ModelError(f"{self._path} does not run: {str(error)[:300]}", _REMEDY) from error
        named = dict(zip(self._outputs, values, strict=True))
        return named.get("token_vectors"), named.get("sentence_vector")


def load_onnxruntime() -> Any:
    """The runtime without its telemetry: a search library sends nothing anywhere.

    Since version 1.29 it starts a thread that uploads when it is imported; only a variable stops that.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    return onnxruntime


def open_session(path: Path, threads: int = 0) -> Any:
    """Load an ONNX file for the CPU, with the options that suit one query at a time."""
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Threads may spin while a text is encoded, but not between texts: the cores belong to the search then.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Work is dealt to the threads in small portions: a core that is busy elsewhere holds up the rest less.
    options.add_session_config_entry("session.dynamic_block_base", "4")
    with compiled_code:
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
    raise MissingModelFile(f"{missing} is missing", f"make it with `coil export {folder}`")
