"""The encoder on PyTorch: for training, for GPUs, and as the reference for the ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coil.compiled import compiled_code
from coil.errors import CoilError, OptionMismatch, require
from coil.forks import cached
from coil.vectors.encoder import BatchEncoder
from coil.vectors.model_files import BACKBONE_FILE, ModelFiles, resolve_weights

for _package in ("torch", "transformers"):
    require(_package, "gpu")

import torch  # noqa: E402

from coil.vectors.torch_model import CoilModel  # noqa: E402

BATCH_TOKENS = {"cpu": 4096, "cuda": 131_072}


class TorchEncoder(BatchEncoder):
    """Runs the safetensors weights of a model folder on the CPU or a GPU, in fp32 or with bf16 autocast."""

    def __init__(
        self,
        model: str | Path | None = None,
        device: str = "cpu",
        autocast: bool = False,
        batch_tokens: int | None = None,
        bucketed: bool = True,
    ) -> None:
        folder = resolve_weights(model).absolute()  # files are read later: the working directory may change
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise CoilError(
                "no CUDA device is available", "use --device cpu, or install a CUDA build of torch"
            )
        kind = "cuda" if device.startswith("cuda") else "cpu"
        super().__init__(ModelFiles.load(folder), batch_tokens or BATCH_TOKENS[kind], bucketed)
        try:
            self._device = torch.device(device)
        except RuntimeError as error:
            raise OptionMismatch(f"unknown device {device!r}", "use cpu, cuda or cuda:0") from error
        self._autocast = autocast
        self._model = CoilModel.from_pretrained(folder).to(self._device).eval()

    @cached
    def fingerprint(self) -> str:
        """A digest of everything that determines the vectors."""
        return self._files.fingerprint(self._files.folder / BACKBONE_FILE)

    @torch.inference_mode()
    def _states(self, input_ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32] | None:
        ids, attention = (torch.from_numpy(array).to(self._device) for array in (input_ids, mask))
        states: torch.Tensor = self._model.backbone(input_ids=ids, attention_mask=attention).last_hidden_state
        return np.asarray(states.float().cpu().numpy(), dtype=np.float32)

    @torch.inference_mode()
    def _forward(
        self, input_ids: NDArray[np.int64], mask: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        with compiled_code():
            ids, attention = (torch.from_numpy(array).to(self._device) for array in (input_ids, mask))
            with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast):
                tokens, sentence = self._model(ids, attention)
            return tuple(  # type: ignore[return-value]
                value.float().cpu().numpy() if value is not None else None for value in (tokens, sentence)
            )
