"""PyTorch: the source of a module, and its state as safetensors. Neither is written by, or needs, PyTorch here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from taihu.core.base.errors import ModelError
from taihu.core.base.whole_file import write_bytes, write_text
from taihu.export.graph import INPUT, Graph, Node, graph_of
from taihu.worker.saved.prediction import LoadedModel

_MARK: Final = "Written by `taihu export --to torch`"
_SOURCE: Final = '''"""{title}

{mark}; the parameters are in {state}:

    from {module} import load
    model = load()              # in evaluation mode
    model.predict(x)            # x: float32 (n, {shape}), as the data had it, not normalised
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    """{inputs}; returns (n, {outputs}) {returns}."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros({channels}))
        self.register_buffer("scale", torch.ones({channels})){offset}
        {made}

    def forward(self, x):
        """Outputs of the last layer."""
        x = ({raw} - self.mean) / self.scale{channels_first}
        {computed}
        return {output}

    @torch.no_grad()
    def predict(self, x):
        """{predicts}."""
        y = self(x){answer}
        return y


def load(path=Path(__file__).with_name("{state}")):
    """The trained model, in evaluation mode."""
    model = Model()
    model.load_state_dict(load_file(path))
    return model.eval()
'''


def write_torch(model: LoadedModel, path: Path) -> tuple[Path, ...]:
    """Write the state to `path` and the source of the module beside it; returns both paths.

    Raises:
        ModelError: a layer is of the user's own or has no equal in PyTorch, or what lies where the source goes was
            not exported.
        WriteError: a file cannot be written.
    """
    source_path = path.with_name(re.sub(r"\W", "_", path.stem) + ".py")
    if source_path.exists() and _MARK not in source_path.read_text(encoding="utf-8", errors="replace"):
        raise ModelError(f"{source_path}: is there already, and is no export; give another --out than {path.name}")
    source = torch_source(model, path.name, source_path.stem)
    write_bytes(path, save(torch_state(model)))
    write_text(source_path, source)
    return (path, source_path)


def torch_state(model: LoadedModel) -> dict[str, NDArray[Any]]:
    """The `state_dict` of the module, in PyTorch's layouts: filters first, linear weights (outputs, inputs)."""
    info = model.info
    state: dict[str, NDArray[Any]] = {
        "mean": info.statistics.mean,
        "scale": info.statistics.scale,
    }
    if info.statistics.offset is not None:
        state["offset"] = info.statistics.offset
    for node in graph_of(model).nodes:
        for name, values in node.tensors.items():
            axes = range(values.ndim) if node.kind in _TABLES else {4: (3, 2, 0, 1), 2: (1, 0)}.get(values.ndim, (0,))
            key = f"{_attribute(node.name)}.{_NAMES.get(name, name)}"
            state[key] = np.ascontiguousarray(values.transpose(axes))
        if node.kind == "BatchNorm":
            # What PyTorch counts there, it does not use with the momentum that the module has.
            state[f"{_attribute(node.name)}.num_batches_tracked"] = np.zeros((), np.int64)
    return state


def torch_source(model: LoadedModel, state: str, module: str) -> str:
    """The source text of a module whose state is in a file called `state`.

    Raises:
        ModelError: see `write_torch`.
    """
    info, graph = model.info, graph_of(model)
    image, wide, channels = len(model.input_shape) == 3, info.statistics.offset is not None, model.input_shape[-1]
    shape = ", ".join(map(str, model.input_shape))
    kinds = {"cross-entropy": "logits of classes", "bce": "logits", "mse": "values"}
    places = "".join(f"{each}, " for each in model.network.output_shape[:-1])
    predicts = (
        f"Probabilities of classes (n, {places}{info.classes})" if info.classes else f"Values (n, {info.outputs})"
    )
    return _SOURCE.format(
        mark=_MARK,
        title=f"A model that taihu trained for {info.steps} steps.",
        state=state.replace('"', "").replace("\\", ""),
        module=module,
        shape=shape,
        offset=f"\n        {_OFFSET.format(channels)}" if wide else "",
        raw="(x.double() - self.offset).float()" if wide else "x",
        inputs=f"Takes {'float64' if wide else 'float32'} (n, {shape}), not normalised"
        + (", channels last" if image else ""),
        outputs=", ".join(map(str, model.network.output_shape)),
        returns=kinds[info.loss],
        channels=channels,
        made="\n        ".join(_modules(graph)),
        computed="\n        ".join(
            f"{_variable(node.name)} = {_EXPRESSION[node.kind](node)}" for node in graph.nodes
        ),
        channels_first="\n        x = x.permute(0, 3, 1, 2)" if image else "",
        output=_variable(graph.output),
        predicts=predicts,
        answer=_ANSWERS[info.loss, bool(info.classes)],
    )


_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"scale": "weight", "shift": "bias", "running_variance": "running_var"}
)
_OFFSET: Final = 'self.register_buffer("offset", torch.zeros({}, dtype=torch.float64))'
_TABLES: Final = ("Embedding", "PositionEmbedding")
_ANSWERS: Final[Mapping[tuple[str, bool], str]] = MappingProxyType(
    {
        ("cross-entropy", True): ".softmax(dim=-1)",
        ("bce", True): ".sigmoid()\n        y = torch.cat((1 - y, y), dim=1)",
        ("bce", False): ".sigmoid()",
        ("mse", False): "",
    }
)


def _attribute(name: str) -> str:
    return name.replace(".", "_")


def _variable(name: str) -> str:
    return "x" if name == INPUT else f"y_{_attribute(name)}"


def _modules(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        make = _MODULE.get(node.kind)
        if make is not None:
            yield f"self.{_attribute(node.name)} = {make(node)}"


def _conv(node: Node) -> str:
    a = node.arguments
    return (
        f"nn.Conv2d({node.input_shape[2]}, {a['filters']}, {a['kernel']}, stride={a['stride']}, "
        f"padding={a['padding']}, groups={a['groups']}, bias={bool(a['bias'])})"
    )


def _linear(node: Node) -> str:
    return f"nn.Linear({node.input_shape[-1]}, {node.arguments['units']}, bias={bool(node.arguments['bias'])})"


def _norm(node: Node) -> str:
    kind = "BatchNorm2d" if len(node.input_shape) == 3 else "BatchNorm1d"
    a = node.arguments
    return f"nn.{kind}({node.input_shape[-1]}, eps={a['epsilon']!r}, momentum={1 - a['momentum']!r})"


def _layer_norm(node: Node) -> str:
    return f"nn.LayerNorm({node.input_shape[-1]}, eps={node.arguments['epsilon']!r})"


def _with_features_first(node: Node) -> str:
    if len(node.input_shape) != 2:
        return _called(node)
    return f"self.{_attribute(node.name)}({_variable(node.inputs[0])}.transpose(1, 2)).transpose(1, 2)"


def _with_channels_last(node: Node) -> str:
    if len(node.input_shape) != 3:
        return _called(node)
    x = _variable(node.inputs[0])
    return f"self.{_attribute(node.name)}({x}.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)"


def _attention(node: Node) -> str:
    parts = f"{_variable(node.inputs[0])}.unflatten(2, (3, {node.arguments['heads']}, -1)).permute(2, 0, 3, 1, 4)"
    return f"functional.scaled_dot_product_attention(*{parts}, is_causal=True).transpose(1, 2).flatten(2)"


def _tied(node: Node) -> str:
    return f"functional.linear({_variable(node.inputs[0])}, self.{_attribute(node.arguments['weights'])}.weight)"


def _called(node: Node) -> str:
    return f"self.{_attribute(node.name)}({_variable(node.inputs[0])})"


def _pool(node: Node) -> str:
    a = node.arguments
    if a["padding"] > a["kernel"] // 2:
        raise ModelError(
            f"{node.name}: a padding of {a['padding']} for a kernel of {a['kernel']}, of which PyTorch's pools take "
            "at most half; export to onnx"
        )
    average = ", count_include_pad=False" if node.kind == "AvgPool2d" else ""
    function = "avg_pool2d" if average else "max_pool2d"
    sizes = f"{a['kernel']}, {a['stride']}, {a['padding']}"
    return f"functional.{function}({_variable(node.inputs[0])}, {sizes}, ceil_mode={bool(a['ceil_mode'])}{average})"


def _shortcut(node: Node) -> str:
    step = node.arguments["stride"]
    more = node.output_shape[2] - node.input_shape[2]
    return f"functional.pad({_variable(node.inputs[0])}[:, :, ::{step}, ::{step}], (0, 0, 0, 0, 0, {more}))"


def _concat(node: Node) -> str:
    return f"torch.cat(({', '.join(map(_variable, node.inputs))},), dim=1)"


def _response_norm(node: Node) -> str:
    a = node.arguments
    return f"nn.LocalResponseNorm({a['size']}, alpha={a['alpha']!r}, beta={a['beta']!r}, k={a['k']!r})"


def _flatten(node: Node) -> str:
    value = _variable(node.inputs[0])
    if len(node.input_shape) == 2:
        return f"{value}.flatten(1)"
    return value if len(node.input_shape) == 1 else f"{value}.permute(0, 2, 3, 1).flatten(1)"


_MODULE: Final[Mapping[str, Callable[[Node], str]]] = MappingProxyType(
    {
        "BatchNorm": _norm,
        "Conv2d": _conv,
        "Dropout": lambda node: f"nn.Dropout({node.arguments['rate']!r})",
        "Embedding": lambda node: f"nn.Embedding({node.arguments['tokens']}, {node.arguments['width']})",
        "LayerNorm": _layer_norm,
        "Linear": _linear,
        "PositionEmbedding": lambda node: f"nn.Embedding({node.input_shape[0]}, {node.input_shape[1]})",
        "LocalResponseNorm": _response_norm,
    }
)
_EXPRESSION: Final[Mapping[str, Callable[[Node], str]]] = MappingProxyType(
    {
        "Add": lambda node: " + ".join(map(_variable, node.inputs)),
        "AvgPool2d": _pool,
        "BatchNorm": _with_features_first,
        "CausalAttention": _attention,
        "Concat": _concat,
        "Conv2d": _called,
        "Dropout": _called,
        "Embedding": lambda node: f"self.{_attribute(node.name)}({_variable(node.inputs[0])}.round().long())",
        "Flatten": _flatten,
        "GELU": lambda node: (
            f"functional.gelu({_variable(node.inputs[0])}, approximate={node.arguments['approximate']!r})"
        ),
        "GlobalAvgPool": lambda node: f"{_variable(node.inputs[0])}.mean((2, 3))",
        "LayerNorm": _with_channels_last,
        "Linear": _called,
        "LocalResponseNorm": _called,
        "MaxPool2d": _pool,
        "PaddedShortcut": _shortcut,
        "PositionEmbedding": lambda node: f"{_variable(node.inputs[0])} + self.{_attribute(node.name)}.weight",
        "ReLU": lambda node: f"functional.relu({_variable(node.inputs[0])})",
        "TiedLinear": _tied,
    }
)
