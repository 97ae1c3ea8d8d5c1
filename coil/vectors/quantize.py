"""fp32 ONNX graph → int8 ONNX graph: eight-bit weights, activations scaled token by token.

Every product with a constant matrix becomes, with x one token's activations [width],

    m = max |x|                      one scale per token, found while running
    q = round(127 x / m) + 128       unsigned eight bits, zero at 128
    y = (m / 127) · (q − 128) W₈ s   W₈ signed eight bits, s one scale per output channel

The usual dynamic quantisation has one scale for the whole batch. One scale a token costs the same time,
is closer to fp32 (mean token cosine .998 instead of .992 on MiniLM-L6), and makes the vectors of a text
independent of the texts that happen to share its batch.

A token of zeros gives 0/0, which becomes some eight-bit number, and is then multiplied by m = 0.

Saturation: with signed weights over the full range, processors without VNNI add pairs of products in
sixteen bits, which can overflow. Weights of seven bits would avoid that, at half the precision for
everyone. We keep eight, and the encoder sets `session.x64quantprecision`, which makes ONNX Runtime use
unsigned weights and its exact kernel on such processors: the same numbers everywhere, slower only there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

MICROSOFT = "com.microsoft"
LEVELS = 127  # −127 … 127, symmetric, so that zero is exact
MIN_TABLE_ROWS = 100  # word and position tables; not token types, not relative position biases


def quantize(model: Any, keep: Iterable[str]) -> Any:
    """A copy of the model with eight-bit products and tables; nodes named like one of `keep` stay fp32."""
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
        quantized.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return quantized


class _Rewriter:
    """Collects the nodes and constants of the new graph, in order."""

    def __init__(self, constants: dict[str, Any], keep: tuple[str, ...]) -> None:
        self.nodes: list[Any] = []
        self.added: list[Any] = []
        self._constants = constants
        self._keep = keep
        self._quantized: dict[str, tuple[str, str]] = {}  # activation → its bytes, its scale
        self._step = self._constant("int8/step", np.array(1 / LEVELS, dtype=np.float32))
        self._zero = self._constant("int8/zero", np.array(LEVELS + 1, dtype=np.uint8))

    def rewrite(self, node: Any) -> None:
        """Append this node, or what stands for it."""
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
        """y = x W, as in the module's docstring."""
        quantized, scale = self._activation(x)
        matrix, channels = self._weight(weight, axis=0)
        self._add(
            "MatMulIntegerToFloat",
            [quantized, matrix, self._step, channels, self._zero],
            [f"{output}/int8"],
            domain=MICROSOFT,
        )
        self._add("Mul", [f"{output}/int8", scale], [output])

    def _attention(self, node: Any) -> None:
        """One product for queries, keys and values together, then attention itself in fp32."""
        x, weight, bias, mask, _, attention_bias = [*node.input, "", "", ""][:6]
        output = node.output[0]
        parts = [f"{output}/{part}" for part in ("query", "key", "value")]
        self._product(x, weight, f"{output}/packed")
        self._add("Split", [f"{output}/packed"], parts, axis=-1)
        known = {"num_heads", "scale", "mask_filter_value", "unidirectional"}
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name in known}
        inputs = [*parts, bias, mask, attention_bias]
        while inputs[-1] == "":
            inputs.pop()
        self._add("MultiHeadAttention", inputs, [output], domain=MICROSOFT, **attributes)

    def _table(self, node: Any) -> None:
        """A table of vectors in bytes, with one scale per row."""
        table, rows = self._weight(node.input[0], axis=1)
        output = node.output[0]
        self._add("Gather", [table, node.input[1]], [f"{output}/bytes"])
        self._add("Cast", [f"{output}/bytes"], [f"{output}/float"], to=onnx.TensorProto.FLOAT)
        self._add("Gather", [rows, node.input[1]], [f"{output}/scale"])
        self._add("Mul", [f"{output}/float", f"{output}/scale"], [output])

    def _activation(self, x: str) -> tuple[str, str]:
        """The bytes and the scales of an activation, made once even where several products read it."""
        if x not in self._quantized:
            self._add("Abs", [x], [f"{x}/abs"])
            self._add("ReduceMax", [f"{x}/abs"], [f"{x}/max"], axes=[-1], keepdims=1)
            self._add("Div", [x, f"{x}/max"], [f"{x}/unit"])
            self._add("QuantizeLinear", [f"{x}/unit", self._step, self._zero], [f"{x}/bytes"])
            self._quantized[x] = f"{x}/bytes", f"{x}/max"
        return self._quantized[x]

    def _weight(self, name: str, axis: int) -> tuple[str, str]:
        """Eight-bit values and scales of a constant; `axis` is the one that shares a scale."""
        values = numpy_helper.to_array(self._constants[name])
        largest = np.abs(values).max(axis=axis, keepdims=True)
        scale = np.where(largest > 0, largest / LEVELS, 1).astype(np.float32)
        rounded = np.rint(values / scale).astype(np.int8)
        scales = scale.reshape(-1) if axis == 0 else scale  # [columns] or [rows, 1]
        return self._constant(f"{name}/int8", rounded), self._constant(f"{name}/scale", scales)

    def _is_matrix(self, name: str) -> bool:
        constant = self._constants.get(name)
        return (
            constant is not None and len(constant.dims) == 2 and constant.data_type == onnx.TensorProto.FLOAT
        )

    def _is_table(self, name: str) -> bool:
        return self._is_matrix(name) and self._constants[name].dims[0] >= MIN_TABLE_ROWS

    def _constant(self, name: str, value: NDArray[Any]) -> str:
        if name not in self._constants:
            self._constants[name] = numpy_helper.from_array(value, name)
            self.added.append(self._constants[name])
        return name

    def _add(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(op, inputs, outputs, name=f"int8/{outputs[0]}", **attributes))
