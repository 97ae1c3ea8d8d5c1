"""The model of an open index: loaded by one thread on first use, and checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coil.errors import MissingModelFile, ModelError, OptionMismatch
from coil.forks import make_lock
from coil.vectors.encoder import Encoder
from coil.vectors.model_files import BACKBONE_FILE, ModelFiles, name_lastingly, resolve_weights
from coil.vectors.onnx_encoder import OnnxEncoder


def load_encoder(model: str | Path | None, fingerprint: str | None = None, threads: int = 0) -> Encoder:
    """A model on ONNX Runtime; or on PyTorch, if an index with this fingerprint was encoded with that, for
    example on GPUs."""
    encoder = OnnxEncoder(model, threads=threads)
    if fingerprint in (None, encoder.fingerprint):
        return encoder
    try:
        weights = resolve_weights(model)
        fits = ModelFiles.load(weights).fingerprint(weights / BACKBONE_FILE) == fingerprint
    except (ModelError, OSError):  # without weights for PyTorch
        return encoder
    if not fits:
        return encoder
    from coil.vectors.torch_encoder import TorchEncoder

    return TorchEncoder(model)


class IndexModel:
    """An encoder, or where to find it."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], encoder: Encoder | None, found_at: str | Path | None
    ) -> None:
        """`found_at`: the location of the model, if it has moved."""
        self._folder, self._settings, self._found_at = folder, settings, name_lastingly(found_at)
        self._encoder = encoder
        self._loading = make_lock()

    @property
    def encoder(self) -> Encoder:
        """The model that the index was built with; raises OptionMismatch for any other."""
        with self._loading:
            if self._encoder is None:
                loaded = self._load()
                if self._encoder is None:  # not loaded by a signal handler meanwhile
                    self._encoder = loaded
            encoder = self._encoder
        made_with = self._settings["fingerprint"]
        if encoder.fingerprint != made_with:
            raise OptionMismatch(
                f"{self._folder} was built with the model {made_with}, but the model found "
                f"({self._found_at or self._settings['model'] or 'bundled'}) is {encoder.fingerprint}",
                "open it with its own model (--model FOLDER), or rebuild it",
            )
        return encoder

    def use(self, encoder: Encoder) -> None:
        """Use this model, which must be the one that the index was built with."""
        with self._loading:
            self._encoder = encoder
        assert self.encoder is encoder

    @property
    def found_at(self) -> str | Path | None:
        """The location of the model, if it has moved."""
        return self._found_at

    def _load(self) -> Encoder:
        fingerprint = self._settings["fingerprint"]
        if self._found_at is not None:
            return load_encoder(self._found_at, fingerprint)
        try:
            return load_encoder(self._settings["model"], fingerprint)
        except MissingModelFile as error:
            raise MissingModelFile(
                f"{self._folder} was built with a model that is missing: {error.reason}",
                "pass its new location with --model FOLDER or coil.open(..., model=FOLDER)",
            ) from error
