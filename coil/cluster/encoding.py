"""Encoding windows in an actor of Ray Data: the input is a window as a row, the output the parts of all
shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from coil.cluster.joining import VERSION
from coil.errors import CoilError, MixedShards
from coil.indexes.model import load_encoder
from coil.shards.encoding import Part, RowRules, WindowEncoder
from coil.shards.exchange import Refusal
from coil.shards.whole import WholeManifest
from coil.shards.windows import Reached, Window
from coil.tokens.contexts import ContextRule
from coil.vectors.encoder import Encoder

_PART = pa.struct(
    {
        "shard": pa.int64(),
        "last": pa.int64(),
        "texts": pa.large_binary(),
        "segment": pa.large_binary(),
        "header": pa.string(),
    }
)
_ROW = pa.schema(
    {
        "read": pa.int64(),
        "digest": pa.binary(),
        "position": pa.int64(),
        "is_last": pa.bool_(),
        "refusal": pa.binary(),
        "parts": pa.list_(_PART),
    }
)


@dataclass(frozen=True)
class EncodedWindow:
    """An encoded window: how far the corpus was read up to its end, and its parts."""

    reached: Reached
    is_last: bool
    refusal: Refusal | None
    parts: tuple[Part, ...]

    @classmethod
    def rows_of(cls, table: pa.Table, shard: int) -> Iterator[EncodedWindow]:
        """The windows of a block, each with the parts of one shard."""
        for place in range(table.num_rows):
            row = {name: table.column(name)[place] for name in _ROW.names}
            parts = tuple(
                Part.from_row(part.as_py()) for part in row["parts"] if part["shard"].as_py() == shard
            )
            reached = Reached(row["read"].as_py(), row["digest"].as_py(), row["position"].as_py())
            told = row["refusal"].as_py()
            refusal = Refusal.from_bytes(told) if told else None
            yield cls(reached, row["is_last"].as_py(), refusal, parts)


@dataclass(frozen=True)
class EncoderRecipe:
    """How an actor on any node gets the encoder of an index; `given` creates one without a model folder."""

    manifest: WholeManifest
    given: Callable[[], Encoder] | None = None
    device: str | None = None  # for PyTorch
    version: str = VERSION  # of this package, where the build was started

    def make(self) -> WindowEncoder:
        """The encoder, on one core or on the device; it must be the one of the index."""
        if self.version != VERSION:
            raise MixedShards(
                f"this node has version {VERSION} of coil-ir, but the build was started with {self.version}",
                "install the same version on all nodes",
            )
        settings = self.manifest.settings
        encoder = self._encoder(settings["model"], settings["fingerprint"])
        if encoder.fingerprint != settings["fingerprint"]:
            raise MixedShards(
                f"the model of this node ({settings['model'] or 'bundled'}) is {encoder.fingerprint}, but "
                f"the index is built with {settings['fingerprint']}",
                "install the same model on all nodes",
            )
        context = ContextRule(settings["context"], settings["front_matter"])
        rules = RowRules(settings["precision"], settings["long"], context)
        return WindowEncoder(encoder, rules, len(self.manifest.shards))

    def _encoder(self, model: str | None, fingerprint: str) -> Encoder:
        if self.given is not None:
            return self.given()
        return load_encoder(model, fingerprint, 1) if self.device is None else encoder_on(self.device, model)


def encoder_on(device: str, model: str | None) -> Encoder:
    """A model in PyTorch on a device; its fingerprint is the same on all of them."""
    from coil.vectors.torch_encoder import TorchEncoder

    return TorchEncoder(model, device=device)


class WindowActor:
    """Called by Ray Data with blocks of windows. A node that cannot encode says why with the first."""

    def __init__(self, recipe: EncoderRecipe) -> None:
        self._encoder: WindowEncoder | Refusal
        try:
            self._encoder = recipe.make()
        except CoilError as error:
            self._encoder = Refusal.of(error)

    def __call__(self, table: pa.Table) -> pa.Table:
        return pa.Table.from_pylist([self._encode(row) for row in table.to_pylist()], _ROW)

    def _encode(self, row: dict[str, Any]) -> dict[str, Any]:
        window = Window.from_row(row)
        refusal, parts = window.refusal, list[Part]()
        if isinstance(self._encoder, Refusal):
            refusal = self._encoder
        else:
            try:
                parts = list(self._encoder.encode(window))
            except CoilError as error:
                refusal = Refusal.of(error)
        return {
            "read": window.reached.documents,
            "digest": window.reached.digest,
            "position": window.reached.position,
            "is_last": window.is_last,
            "refusal": b"" if refusal is None else refusal.to_bytes(),
            "parts": [part.to_row() for part in parts],
        }


class OneCoreActor(WindowActor):
    """As Ray Data starts it, in a process of its own that has one core. The tokenizer would otherwise use
    all cores, as would those of the other actors."""

    def __init__(self, recipe: EncoderRecipe) -> None:
        os.environ["RAYON_NUM_THREADS"] = "1"
        super().__init__(recipe)
