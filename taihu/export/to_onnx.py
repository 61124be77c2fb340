"""ONNX: a graph from raw inputs, as the data had them, to what `LoadedModel.predict` returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from taihu.core.base.errors import ModelError
from taihu.core.base.whole_file import write_bytes
from taihu.export.graph import INPUT, Graph, Node, graph_of
from taihu.worker.engine import Array
from taihu.worker.saved.prediction import LoadedModel

InputKind = Literal["floats", "bytes"]

_OPSET: Final = 17
_IR_VERSION: Final = 8
_MOST_BYTES: Final = 2_000_000_000


def write_onnx(model: LoadedModel, path: Path, inputs: InputKind = "floats") -> tuple[Path, ...]:
    """Write `model` as an ONNX file, checked; returns what was written.

    Raises:
        ModelError: a layer is of the user's own, the file would pass ONNX's 2 GB, or bytes are asked for of a table's
            columns.
        WriteError: it cannot be written.
    """
    size = sum(tensor.nbytes for tensor in model.network.parameters_by_name().values())
    if size > _MOST_BYTES:
        raise ModelError(
            f"{path}: {size / 1e9:.1f} GB of parameters, an ONNX file holds 2 GB; export to torch instead"
        )
    made = onnx_model(model, inputs)
    onnx.checker.check_model(made, full_check=True)
    write_bytes(path, made.SerializeToString())
    return (path,)


def onnx_model(model: LoadedModel, inputs: InputKind = "floats") -> onnx.ModelProto:
    """The graph of a model.

    Its input is `input` (n, *input_shape), float32 or with `bytes` uint8, not normalised. Its outputs are
    `probabilities` (n, classes) and `logits` (n, outputs), before softmax or sigmoid; of a model of values `values`
    (n, outputs), and for those within 0 to 1 (loss bce) `logits` too. Of text all have an axis of places:
    (n, time, outputs).

    Raises:
        ModelError: a layer is of the user's own, or the inputs are a table's columns and no bytes.
    """
    if inputs == "bytes" and model.info.columns:
        raise ModelError("the model was trained on a table, whose numbers are no bytes; leave --inputs bytes out")
    graph = graph_of(model)
    writer = _Writer()
    _normalise(writer, model, inputs)
    for node in graph.nodes:
        _WRITE[node.kind](writer, node)
    outputs = _answer(writer, model, graph)
    floats = TensorProto.FLOAT if model.info.statistics.offset is None else TensorProto.DOUBLE
    element = TensorProto.UINT8 if inputs == "bytes" else floats
    taken = helper.make_tensor_value_info("input", element, ["n", *model.input_shape])
    made = helper.make_graph(writer.nodes, "taihu", [taken], outputs, writer.tensors)
    imports = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(made, opset_imports=imports, ir_version=_IR_VERSION, producer_name="taihu")


class _Writer:
    """Collects ONNX nodes and constants; images are (n, channels, height, width) in between; sequences stay."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def constant(self, name: str, values: Array) -> str:
        """Its name."""
        self.tensors.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def add(self, operation: str, inputs: tuple[str, ...], output: str, **attributes: Any) -> str:
        """The name of the output."""
        self.nodes.append(helper.make_node(operation, inputs, [output], name=output, **attributes))
        return output


def _normalise(writer: _Writer, model: LoadedModel, inputs: InputKind) -> None:
    statistics = model.info.statistics
    mean, scale = writer.constant("mean", statistics.mean), writer.constant("scale", statistics.scale)
    raw = "input"
    if statistics.offset is not None:
        # In float64, as training does; what is left is rounded.
        wide = raw if inputs == "floats" else writer.add("Cast", (raw,), "doubles", to=TensorProto.DOUBLE)
        wide = writer.add("Sub", (wide, writer.constant("offset", statistics.offset)), "moved")
        raw = writer.add("Cast", (wide,), "numbers", to=TensorProto.FLOAT)
    elif inputs == "bytes":
        raw = writer.add("Cast", (raw,), "numbers", to=TensorProto.FLOAT)
    centred = writer.add("Sub", (raw, mean), "centred")
    if len(model.input_shape) == 1:
        writer.add("Div", (centred, scale), INPUT)
    else:
        scaled = writer.add("Div", (centred, scale), "scaled")
        writer.add("Transpose", (scaled,), INPUT, perm=[0, 3, 1, 2])


def _answer(writer: _Writer, model: LoadedModel, graph: Graph) -> list[onnx.ValueInfoProto]:
    info, places = model.info, model.network.output_shape[:-1]
    if info.loss == "mse":
        writer.add("Identity", (graph.output,), "values")
        return [_floats("values", info.outputs)]
    logits = writer.add("Identity", (graph.output,), "logits")
    name = "probabilities" if info.classes else "values"
    if info.loss == "cross-entropy":
        writer.add("Softmax", (logits,), name, axis=-1)
    elif info.classes:
        yes = writer.add("Sigmoid", (logits,), "yes")
        no = writer.add("Sub", (writer.constant("one", np.ones(1, np.float32)), yes), "no")
        writer.add("Concat", (no, yes), name, axis=-1)
    else:
        writer.add("Sigmoid", (logits,), name)
    return [_floats(name, *places, info.classes or info.outputs), _floats("logits", *places, info.outputs)]


def _floats(name: str, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape])


def _constants(writer: _Writer, node: Node, *names: str) -> tuple[str, ...]:
    return tuple(writer.constant(f"{node.name}/{name}", node.tensors[name]) for name in names if name in node.tensors)


def _conv(writer: _Writer, node: Node) -> None:
    arguments = node.arguments
    weight = writer.constant(f"{node.name}/weight", node.tensors["weight"].transpose(3, 2, 0, 1))
    writer.add(
        "Conv",
        (*node.inputs, weight, *_constants(writer, node, "bias")),
        node.name,
        kernel_shape=[arguments["kernel"]] * 2,
        strides=[arguments["stride"]] * 2,
        pads=[arguments["padding"]] * 4,
        group=arguments["groups"],
    )


def _linear(writer: _Writer, node: Node) -> None:
    weight, *bias = _constants(writer, node, "weight", "bias")
    if len(node.input_shape) == 1:
        writer.add("Gemm", (*node.inputs, weight, *bias), node.name)
    elif bias:
        product = writer.add("MatMul", (*node.inputs, weight), f"{node.name}/product")
        writer.add("Add", (product, *bias), node.name)
    else:
        writer.add("MatMul", (*node.inputs, weight), node.name)


def _norm(writer: _Writer, node: Node) -> None:
    constants = _constants(writer, node, "scale", "shift", "running_mean", "running_variance")
    epsilon = node.arguments["epsilon"]
    if len(node.input_shape) != 2:
        writer.add("BatchNormalization", (*node.inputs, *constants), node.name, epsilon=epsilon)
        return
    first = writer.add("Transpose", node.inputs, f"{node.name}/features_first", perm=[0, 2, 1])
    made = writer.add("BatchNormalization", (first, *constants), f"{node.name}/normalised", epsilon=epsilon)
    writer.add("Transpose", (made,), node.name, perm=[0, 2, 1])


def _layer_norm(writer: _Writer, node: Node) -> None:
    constants = _constants(writer, node, "scale", "shift")
    epsilon = node.arguments["epsilon"]
    if len(node.input_shape) != 3:
        writer.add("LayerNormalization", (*node.inputs, *constants), node.name, axis=-1, epsilon=epsilon)
        return
    last = writer.add("Transpose", node.inputs, f"{node.name}/channels_last", perm=[0, 2, 3, 1])
    made = writer.add("LayerNormalization", (last, *constants), f"{node.name}/normalised", axis=-1, epsilon=epsilon)
    writer.add("Transpose", (made,), node.name, perm=[0, 3, 1, 2])


def _embedding(writer: _Writer, node: Node) -> None:
    tokens = writer.add("Cast", node.inputs, f"{node.name}/tokens", to=TensorProto.INT64)
    writer.add("Gather", (*_constants(writer, node, "weight"), tokens), node.name)


def _position(writer: _Writer, node: Node) -> None:
    writer.add("Add", (*node.inputs, *_constants(writer, node, "weight")), node.name)


def _tied(writer: _Writer, node: Node) -> None:
    table = writer.add("Transpose", (f"{node.arguments['weights']}/weight",), f"{node.name}/weight", perm=[1, 0])
    writer.add("MatMul", (*node.inputs, table), node.name)


def _gelu(writer: _Writer, node: Node) -> None:
    def number(name: str, value: float) -> str:
        return writer.constant(f"{node.name}/{name}", np.array(value, np.float32))

    (x,), name = node.inputs, node.name
    if node.arguments["approximate"] == "tanh":
        square = writer.add("Mul", (x, x), f"{name}/square")
        factor = writer.add("Mul", (square, number("factor_of_cube", 0.044715)), f"{name}/factor")
        grown = writer.add("Add", (factor, number("one", 1.0)), f"{name}/grown")
        inner = writer.add("Mul", (grown, x), f"{name}/inner")
        scaled = writer.add("Mul", (inner, number("root", math.sqrt(2 / math.pi))), f"{name}/scaled")
        share = writer.add("Tanh", (scaled,), f"{name}/share")
    else:
        scaled = writer.add("Mul", (x, number("root", math.sqrt(0.5))), f"{name}/scaled")
        share = writer.add("Erf", (scaled,), f"{name}/share")
    whole = writer.add("Add", (share, number("whole", 1.0)), f"{name}/from_zero")
    half = writer.add("Mul", (x, number("half", 0.5)), f"{name}/halved")
    writer.add("Mul", (half, whole), name)


def _attention(writer: _Writer, node: Node) -> None:
    name, heads = node.name, node.arguments["heads"]
    time, width = node.output_shape
    shape = writer.constant(f"{name}/shape", np.array([0, time, 3, heads, width // heads], np.int64))
    parts = writer.add("Reshape", (*node.inputs, shape), f"{name}/apart")
    by_part = writer.add("Transpose", (parts,), f"{name}/by_part", perm=[2, 0, 3, 1, 4])
    queries, keys, values = (
        writer.add("Gather", (by_part, writer.constant(f"{name}/{index}", np.array(index))), f"{name}/part{index}")
        for index in range(3)
    )
    turned = writer.add("Transpose", (keys,), f"{name}/keys", perm=[0, 1, 3, 2])
    products = writer.add("MatMul", (queries, turned), f"{name}/products")
    scale = writer.constant(f"{name}/scale", np.array(1 / math.sqrt(width // heads), np.float32))
    later = np.triu(np.full((time, time), -np.inf, np.float32), 1)
    scores = writer.add("Mul", (products, scale), f"{name}/scores")
    seen = writer.add("Add", (scores, writer.constant(f"{name}/later", later)), f"{name}/seen")
    weights = writer.add("Softmax", (seen,), f"{name}/weights", axis=-1)
    made = writer.add("MatMul", (weights, values), f"{name}/made")
    by_place = writer.add("Transpose", (made,), f"{name}/by_place", perm=[0, 2, 1, 3])
    writer.add("Reshape", (by_place, writer.constant(f"{name}/together", np.array([0, time, width]))), name)


def _relu(writer: _Writer, node: Node) -> None:
    writer.add("Relu", node.inputs, node.name)


def _same(writer: _Writer, node: Node) -> None:
    writer.add("Identity", node.inputs, node.name)


def _add(writer: _Writer, node: Node) -> None:
    writer.add("Add", node.inputs, node.name)


def _concat(writer: _Writer, node: Node) -> None:
    writer.add("Concat", node.inputs, node.name, axis=1)


def _response_norm(writer: _Writer, node: Node) -> None:
    a = node.arguments
    writer.add("LRN", node.inputs, node.name, size=a["size"], alpha=a["alpha"], beta=a["beta"], bias=a["k"])


def _flatten(writer: _Writer, node: Node) -> None:
    if len(node.input_shape) == 1:
        return _same(writer, node)
    if len(node.input_shape) == 2:
        writer.add("Flatten", node.inputs, node.name, axis=1)
        return None
    last = writer.add("Transpose", node.inputs, f"{node.name}/channels_last", perm=[0, 2, 3, 1])
    writer.add("Flatten", (last,), node.name, axis=1)
    return None


def _mean(writer: _Writer, node: Node) -> None:
    mean = writer.add("GlobalAveragePool", node.inputs, f"{node.name}/mean")
    writer.add("Flatten", (mean,), node.name, axis=1)


def _max_pool(writer: _Writer, node: Node) -> None:
    _pool(writer, node, "MaxPool")


def _avg_pool(writer: _Writer, node: Node) -> None:
    _pool(writer, node, "AveragePool", count_include_pad=0)


def _pool(writer: _Writer, node: Node, operation: str, **attributes: int) -> None:
    """The border behind the image is what the last window needs: ceil_mode is understood in more than one way."""
    kernel, stride, padding = (node.arguments[name] for name in ("kernel", "stride", "padding"))
    sides = zip(node.input_shape[:2], node.output_shape[:2], strict=True)
    behind = [max(0, (positions - 1) * stride + kernel - side - padding) for side, positions in sides]
    pads = [padding, padding, *behind]
    shape = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": pads}
    writer.add(operation, node.inputs, node.name, **shape, **attributes)


def _shortcut(writer: _Writer, node: Node) -> None:
    stride, name = node.arguments["stride"], node.name
    ends = np.array(node.input_shape[:2])
    numbers = {"starts": np.zeros(2), "ends": ends, "axes": np.array([2, 3]), "steps": np.full(2, stride)}
    constants = tuple(writer.constant(f"{name}/{key}", each.astype(np.int64)) for key, each in numbers.items())
    kept = writer.add("Slice", (*node.inputs, *constants), f"{name}/kept")
    more = node.output_shape[2] - node.input_shape[2]
    pads = writer.constant(f"{name}/pads", np.array([0, 0, 0, 0, 0, more, 0, 0], np.int64))
    writer.add("Pad", (kept, pads), name)


_WRITE: Final[Mapping[str, Callable[[_Writer, Node], None]]] = MappingProxyType(
    {
        "Add": _add,
        "AvgPool2d": _avg_pool,
        "BatchNorm": _norm,
        "CausalAttention": _attention,
        "Concat": _concat,
        "Conv2d": _conv,
        "Dropout": _same,
        "Embedding": _embedding,
        "Flatten": _flatten,
        "GELU": _gelu,
        "GlobalAvgPool": _mean,
        "LayerNorm": _layer_norm,
        "Linear": _linear,
        "LocalResponseNorm": _response_norm,
        "MaxPool2d": _max_pool,
        "PaddedShortcut": _shortcut,
        "PositionEmbedding": _position,
        "ReLU": _relu,
        "TiedLinear": _tied,
    }
)
