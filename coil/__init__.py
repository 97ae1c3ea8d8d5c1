"""COIL: search with contextualized inverted lists.

Names are imported on first use, so `import coil` does not load numpy, onnxruntime or torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coil.errors import CoilError
    from coil.explanations.explanation import Explanation, Match, explain
    from coil.hits.frame import to_frame
    from coil.hits.hit import Hit
    from coil.hits.searcher import Searcher
    from coil.indexes.index import Index
    from coil.indexes.opening import create
    from coil.indexes.opening import open_index as open
    from coil.remote.client import connect, connect_async
    from coil.texts.corpora import read_documents
    from coil.texts.values import Document, Query
    from coil.tokens.profile import PAPER, ScoringProfile
    from coil.vectors.config import ModelConfig
    from coil.vectors.encoder import Encoder
    from coil.vectors.onnx_encoder import OnnxEncoder
    from coil.vectors.token_vectors import TokenVectors
    from coil.vectors.torch_encoder import TorchEncoder

__version__ = "0.1.0"

_HOMES = {
    "CoilError": "coil.errors",
    "Document": "coil.texts.values",
    "Encoder": "coil.vectors.encoder",
    "Explanation": "coil.explanations.explanation",
    "Hit": "coil.hits.hit",
    "Index": "coil.indexes.index",
    "Match": "coil.explanations.explanation",
    "ModelConfig": "coil.vectors.config",
    "OnnxEncoder": "coil.vectors.onnx_encoder",
    "PAPER": "coil.tokens.profile",
    "Query": "coil.texts.values",
    "ScoringProfile": "coil.tokens.profile",
    "Searcher": "coil.hits.searcher",
    "TokenVectors": "coil.vectors.token_vectors",
    "TorchEncoder": "coil.vectors.torch_encoder",
    "connect": "coil.remote.client",
    "connect_async": "coil.remote.client",
    "create": "coil.indexes.opening",
    "explain": "coil.explanations.explanation",
    "open": "coil.indexes.opening",
    "read_documents": "coil.texts.corpora",
    "to_frame": "coil.hits.frame",
}

_OTHER_NAMES = {"open": "open_index"}  # public names that differ from those inside the package

__all__ = [
    "PAPER",
    "CoilError",
    "Document",
    "Encoder",
    "Explanation",
    "Hit",
    "Index",
    "Match",
    "ModelConfig",
    "OnnxEncoder",
    "Query",
    "ScoringProfile",
    "Searcher",
    "TokenVectors",
    "TorchEncoder",
    "connect",
    "connect_async",
    "create",
    "explain",
    "open",
    "read_documents",
    "to_frame",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'coil' has no attribute {name!r}")
    from coil.compiled import importing

    with importing():
        value = getattr(importlib.import_module(_HOMES[name]), _OTHER_NAMES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
