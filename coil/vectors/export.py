"""Export of a trained model to ONNX: traced by PyTorch, fused, quantized, checked, then saved.

Importing this module requires the packages of the `train` extra; if one is missing, the error says so.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from coil.errors import ModelError, OptionMismatch, OutputError, require
from coil.tokens.tokenizer import Tokens
from coil.vectors.encoder import pad
from coil.vectors.model_files import ONNX_FILES, ModelFiles
from coil.vectors.onnx_encoder import HIDDEN, Precision, load_onnxruntime, open_session
from coil.vectors.quiet import quiet

for _package in ("torch", "transformers", "onnx"):
    require(_package, "train")

import onnx  # noqa: E402
import torch  # noqa: E402

from coil.vectors.torch_model import CoilModel  # noqa: E402

OPSET = 17  # the newest version that the fusions below support
MAX_BYTES = 2_000_000_000  # of one ONNX file without side files, a limit of protobuf
MAX_ERROR = 1e-4  # fp32: largest difference from PyTorch in any value
MIN_COSINE = 0.99  # int8: mean cosine with PyTorch, over tokens and over sentences

MICROSOFT = "com.microsoft"
LEVELS = 127  # of activations and tables: −127 … 127, symmetric, so that zero is exact
MATRIX_LEVELS = 64  # of matrices, see `quantize`
MIN_TABLE_ROWS = 100  # word and position tables, but not token types or relative position biases

# Texts for the check: short and long, ordinary and odd, to exercise padding and quantization.
SAMPLES = (
    "how do I cancel a long running task",
    "bank",
    "The river rose over its banks after three days of rain, and the bridge was closed to traffic.",
    "Return a new list containing all items from the iterable in ascending order.",
    "What is the interest rate of a savings account in 2021?",
    "COIL stores the contextualized vectors of every token in inverted lists. At search time only the "
    "lists of the query's tokens are read, and each query token takes its best match in a document; the "
    "scores of all tokens are added, together with the similarity of the whole texts.",
    "IndexError: list index out of range (line 42, in <module>)",
    "naïve café – 東京 🙂",
    "",
)


@dataclass(frozen=True)
class ExportedFile:
    """An ONNX file and how much it differs from PyTorch (None if it was not checked)."""

    path: Path
    precision: Precision
    bytes: int
    max_error: float | None = None
    token_cosine: float | None = None
    sentence_cosine: float | None = None


def export_model(
    folder: Path, precisions: Sequence[Precision] = ("fp32", "int8"), check: bool = True
) -> list[ExportedFile]:
    """Write model.onnx and/or model.int8.onnx into a model folder.

    A file is compared with PyTorch before it is put in place; one that differs too much is not written.
    """
    for precision in precisions:
        if precision not in get_args(Precision):
            raise OptionMismatch(f"precision is {precision!r}; it must be one of {', '.join(ONNX_FILES)}")
    files = ModelFiles.load(folder)
    model = CoilModel.from_pretrained(folder).eval()
    fused = fuse(trace(model, files), model)
    exported = []
    for precision in precisions:
        # The token projection is small and comes last: in fp32 it costs little and stays exact.
        graph = fused if precision == "fp32" else quantize(fused, keep=["/tok_proj/"])
        with _written(folder / ONNX_FILES[precision], graph.SerializeToString()) as unfinished:
            size = unfinished.stat().st_size
            report = ExportedFile(folder / ONNX_FILES[precision], precision, size)
            if check:
                report = _compare(report, unfinished, model, files)
        exported.append(report)
    return exported


def trace(model: CoilModel, files: ModelFiles) -> Any:
    """Record the PyTorch model as an ONNX graph; batch and length are variable, the widths are fixed."""
    size = sum(weight.numel() * 4 for weight in model.parameters())
    if size > MAX_BYTES:
        raise ModelError(
            f"{files.folder} has {size / 1e9:.1f} GB of weights, more than an ONNX file can hold",
            "use the PyTorch encoder for this model",
        )
    model = copy.deepcopy(model)  # it is modified below; the check needs the trained model
    with contextlib.suppress(AttributeError, ValueError):  # some models have only one implementation anyway
        # The fusion recognizes the plain formula.
        model.backbone.set_attn_implementation("eager")  # type: ignore[operator]
    inputs = ["input_ids", "attention_mask"]
    widths = {"token_vectors": model.config.n_t, "sentence_vector": model.config.n_c}
    outputs = [name for name, width in widths.items() if width]
    if model.config.n_c and model.config.pooling == "mean":
        outputs.append(HIDDEN)  # the sentence vector is their mean; explanations need them
    axes = {name: {0: "batch", 1: "length"} for name in (*inputs, *outputs)}
    axes["sentence_vector"] = {0: "batch"}

    # Sums and products over the texts of a batch round differently for one text than for several. These do
    # not, so a text has the same sentence vector alone and in any batch.
    model.sum_tokens = lambda hidden, mask: (mask.unsqueeze(1) @ hidden).squeeze(1)  # type: ignore[method-assign]
    if model.cls_proj is not None:
        model.cls_proj = RowProduct(model.cls_proj)  # type: ignore[assignment]

    class Present(torch.nn.Module):
        """Returns only the outputs that exist: the tracer cannot record an output that is None."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
            hidden = self.model.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
            tokens, sentence = self.model.vectors(hidden, mask)
            named = {"token_vectors": tokens, "sentence_vector": sentence, HIDDEN: hidden}
            return tuple(named[name] for name in outputs)

    ids, mask = pad(files.tokenizer.cut(SAMPLES[:3], 16), 16)
    buffer = io.BytesIO()
    with quiet():
        torch.onnx.export(
            Present().eval(),
            (torch.from_numpy(ids), torch.from_numpy(mask)),
            buffer,  # type: ignore[arg-type]
            input_names=inputs,
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,  # the newer exporter is slower, and the fusion does not recognize its graphs
        )
    return onnx.load_from_string(buffer.getvalue())


class RowProduct(torch.nn.Module):
    """W x + b as a sum of products, for each text separately."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """[batch, width] → [batch, n_c]."""
        return (pooled.unsqueeze(-2) * self.weight).sum(-1) + self.bias


def fuse(graph: Any, model: CoilModel) -> Any:
    """Replace attention, GELU and layer normalization by ONNX Runtime's fused operators where recognized."""
    load_onnxruntime()
    from onnxruntime.transformers.fusion_options import FusionOptions
    from onnxruntime.transformers.optimizer import optimize_by_fusion

    options = FusionOptions("bert")
    # The fused embedding cannot be stored in bytes with one scale per row, and the fused skip + layer
    # normalization is ten times slower on the CPU than Add and LayerNormalization (ONNX Runtime 1.31).
    options.enable_embed_layer_norm = False
    options.enable_skip_layer_norm = False
    options.enable_bias_skip_layer_norm = False
    shape: Any = model.backbone.config
    with quiet():
        fused = optimize_by_fusion(
            graph,
            model_type="bert",
            num_heads=shape.num_attention_heads,
            hidden_size=shape.hidden_size,
            optimization_options=options,
        ).model
    for node in fused.graph.node:
        node.ClearField("doc_string")
    return fused


def quantize(model: Any, keep: Iterable[str]) -> Any:
    """A copy with eight-bit weights and tables; nodes whose names contain one of `keep` stay fp32.

    Every product with a constant matrix becomes, with x the activations of one token [width],

        m = max |x|                      one scale per token, computed at run time
        q = round(127 x / m) + 128       unsigned eight bits, zero at 128
        y = (m / 127) · (q − 128) W₈ s   W₈ signed, within ±64, s one scale per output channel

    The usual dynamic quantization has one scale for the whole batch. One scale per token takes about the same
    time, is closer to fp32 (mean token cosine .998 instead of .992 on MiniLM-L6), and makes the vectors of a
    text independent of the other texts in its batch.

    A token of zeros gives 0/0, which becomes some eight-bit number, and is then multiplied by m = 0.

    Why ±64: processors without VNNI add two products in sixteen bits; 2 · 255 · 127 does not fit, but
    2 · 255 · 64 does. So the sums are exact, and the vectors the same, on every processor. This lowers the
    cosine by .0015. ONNX Runtime's own remedy (`session.x64quantprecision`) keeps the full range, but is half
    as fast, even on processors with VNNI.
    """
    quantized = onnx.ModelProto()
    quantized.CopyFrom(model)
    graph = quantized.graph
    rewriter = _Rewriter({i.name: i for i in graph.initializer}, tuple(keep))
    for node in list(graph.node):
        rewriter.rewrite(node)
    used = {name for node in rewriter.nodes for name in node.input}
    kept = [i for i in (*graph.initializer, *rewriter.added) if i.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(rewriter.nodes)
    graph.initializer.extend(kept)
    if MICROSOFT not in {opset.domain for opset in quantized.opset_import}:
        quantized.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return quantized


class _Rewriter:
    """Collects the nodes and constants of the new graph, in order."""

    def __init__(self, constants: dict[str, Any], keep: tuple[str, ...]) -> None:
        self.nodes: list[Any] = []
        self.added: list[Any] = []
        self._constants = constants
        self._keep = keep
        self._quantized: dict[str, tuple[str, str]] = {}  # activation → bytes and scale
        self._step = self._constant("int8/step", np.array(1 / LEVELS, dtype=np.float32))
        self._zero = self._constant("int8/zero", np.array(LEVELS + 1, dtype=np.uint8))

    def rewrite(self, node: Any) -> None:
        """Append this node or its replacement."""
        if any(name in node.name for name in self._keep):
            self.nodes.append(node)
        elif node.op_type == "MatMul" and self._is_matrix(node.input[1]):
            self._product(node.input[0], node.input[1], node.output[0])
        elif node.op_type == "Attention" and self._is_matrix(node.input[1]) and not any(node.input[4:5]):
            self._attention(node)
        elif node.op_type == "Gather" and self._is_table(node.input[0]):
            self._table(node)
        else:
            self.nodes.append(node)

    def _product(self, x: str, weight: str, output: str) -> None:
        """Add y = x W, as described at `quantize`."""
        quantized, scale = self._activation(x)
        matrix, channels = self._matrix(weight)
        self._add(
            "MatMulIntegerToFloat",
            [quantized, matrix, self._step, channels, self._zero],
            [f"{output}/int8"],
            domain=MICROSOFT,
        )
        self._add("Mul", [f"{output}/int8", scale], [output])

    def _attention(self, node: Any) -> None:
        """Add one product for queries, keys and values together, then the attention in fp32."""
        x, weight, bias, mask, _, attention_bias = [*node.input, "", "", ""][:6]
        output = node.output[0]
        parts = [f"{output}/{part}" for part in ("query", "key", "value")]
        self._product(x, weight, f"{output}/packed")
        self._add("Split", [f"{output}/packed"], parts, axis=-1)
        known = {"num_heads", "scale", "mask_filter_value", "unidirectional"}
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.name in known}
        inputs = [*parts, bias, mask, attention_bias]
        while inputs[-1] == "":
            inputs.pop()
        self._add("MultiHeadAttention", inputs, [output], domain=MICROSOFT, **attributes)

    def _table(self, node: Any) -> None:
        """Add a table of vectors in bytes, with one scale per row."""
        table, rows = self._rows(node.input[0])
        output = node.output[0]
        self._add("Gather", [table, node.input[1]], [f"{output}/bytes"])
        self._add("Cast", [f"{output}/bytes"], [f"{output}/float"], to=onnx.TensorProto.FLOAT)
        self._add("Gather", [rows, node.input[1]], [f"{output}/scale"])
        self._add("Mul", [f"{output}/float", f"{output}/scale"], [output])

    def _activation(self, x: str) -> tuple[str, str]:
        """The bytes and the scales of an activation, computed once even if several products read it."""
        if x not in self._quantized:
            self._add("Abs", [x], [f"{x}/abs"])
            self._add("ReduceMax", [f"{x}/abs"], [f"{x}/max"], axes=[-1], keepdims=1)
            self._add("Div", [x, f"{x}/max"], [f"{x}/unit"])
            self._add("QuantizeLinear", [f"{x}/unit", self._step, self._zero], [f"{x}/bytes"])
            self._quantized[x] = f"{x}/bytes", f"{x}/max"
        return self._quantized[x]

    def _matrix(self, name: str) -> tuple[str, str]:
        """A constant matrix with one scale per column: [width, channels] and [channels]."""
        rounded, scale = _round(onnx.numpy_helper.to_array(self._constants[name]), 0, MATRIX_LEVELS)
        return self._constant(f"{name}/int8", rounded), self._constant(f"{name}/scale", scale[0])

    def _rows(self, name: str) -> tuple[str, str]:
        """A constant table with one scale per row: [rows, width] and [rows, 1]."""
        rounded, scale = _round(onnx.numpy_helper.to_array(self._constants[name]), 1, LEVELS)
        return self._constant(f"{name}/int8", rounded), self._constant(f"{name}/scale", scale)

    def _is_matrix(self, name: str) -> bool:
        constant = self._constants.get(name)
        return (
            constant is not None and len(constant.dims) == 2 and constant.data_type == onnx.TensorProto.FLOAT
        )

    def _is_table(self, name: str) -> bool:
        return self._is_matrix(name) and self._constants[name].dims[0] >= MIN_TABLE_ROWS

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self._constants:
            self._constants[name] = onnx.numpy_helper.from_array(value, name)
            self.added.append(self._constants[name])
        return name

    def _add(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        self.nodes.append(onnx.helper.make_node(op, inputs, outputs, name=f"int8/{outputs[0]}", **attributes))


def _round(
    values: NDArray[np.float32], axis: int, levels: int
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Eight-bit values and their scales; values along `axis` share a scale."""
    largest = np.abs(values).max(axis=axis, keepdims=True)
    scale = np.where(largest > 0, largest / levels, 1).astype(np.float32)
    return np.rint(values / scale).astype(np.int8), scale


def _compare(report: ExportedFile, path: Path, model: CoilModel, files: ModelFiles) -> ExportedFile:
    """Run the samples through PyTorch and the new file, one by one and as one padded batch."""
    session = open_session(path)
    tokens = files.tokenizer.cut(SAMPLES, files.config.profile.document_length)
    differences: list[float] = []
    cosines: dict[str, list[float]] = {"token_vectors": [], "sentence_vector": []}
    for batch in ([*tokens], *([text] for text in tokens)):
        expected = _run_torch(model, batch)
        ids, mask = pad(batch, max(len(text) for text in batch))
        names = list(expected)
        found = dict(zip(names, session.run(names, {"input_ids": ids, "attention_mask": mask}), strict=True))
        for name, value in expected.items():
            real = _real_tokens(batch, files, ids.shape[1]) if name == "token_vectors" else slice(None)
            a, b = value[real], found[name][real]
            differences.extend(np.abs(a - b).max(axis=-1).tolist())
            cosines[name].extend(_cosines(a, b))
    # NumPy's max and mean, unlike Python's, propagate NaN, and every comparison with NaN is false.
    max_error = float(np.max(differences))
    token_cosine, sentence_cosine = (float(np.mean(values or [1.0])) for values in cosines.values())
    exact = report.precision == "fp32"
    good = max_error <= MAX_ERROR if exact else min(token_cosine, sentence_cosine) >= MIN_COSINE
    if not good:
        raise ModelError(
            f"{report.path} does not match PyTorch: largest difference {max_error:.2g}, mean cosine "
            f"{token_cosine:.4f} of tokens and {sentence_cosine:.4f} of sentences; required: "
            + (f"a difference of at most {MAX_ERROR:g}" if exact else f"a cosine of at least {MIN_COSINE}"),
            "report this with the model's config.json"
            if exact
            else "create only the exact file with --precision fp32, or skip this check with --no-check",
        )
    return ExportedFile(report.path, report.precision, report.bytes, max_error, token_cosine, sentence_cosine)


def _run_torch(model: CoilModel, batch: list[Tokens]) -> dict[str, NDArray[np.float32]]:
    ids, mask = pad(batch, max(len(text) for text in batch))
    with torch.inference_mode():
        tokens, sentence = model(torch.from_numpy(ids), torch.from_numpy(mask))
    named = {"token_vectors": tokens, "sentence_vector": sentence}
    return {name: value.numpy() for name, value in named.items() if value is not None}


def _real_tokens(batch: list[Tokens], files: ModelFiles, width: int) -> NDArray[np.bool_]:
    """Which positions are tokens of the texts, not special tokens or padding: [batch, length]."""
    first, last = len(files.tokenizer.prefix), len(files.tokenizer.suffix)
    places = np.arange(width)[None]
    ends = np.array([len(text) - last for text in batch])[:, None]
    real: NDArray[np.bool_] = (places >= first) & (places < ends)
    return real


def _cosines(a: NDArray[np.float32], b: NDArray[np.float32]) -> list[float]:
    """The cosine of each pair of rows; for term weights (width 1), one cosine over all of them."""
    if a.shape[-1] == 1:
        a, b = a.reshape(1, -1), b.reshape(1, -1)
    zero = ~a.any(axis=-1) & ~b.any(axis=-1)  # equal, although the cosine is undefined
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return list(np.where(zero, 1.0, (a * b).sum(axis=-1) / np.maximum(norms, 1e-12)).tolist())


@contextlib.contextmanager
def _written(path: Path, data: bytes) -> Iterator[Path]:
    """Write a temporary file that replaces the path only after the caller's check has passed."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_bytes(data)
        yield unfinished
        os.replace(unfinished, path)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror or error}",
            "copy the model folder to a writable location and export there",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
