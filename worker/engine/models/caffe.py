"""Models from networks of Caffe: a `.prototxt` file of layers becomes those of this engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn

from taihu.core.base.errors import ModelError
from taihu.core.base.words import counted
from taihu.core.model.caffe_net import read_net
from taihu.protos import caffe_net_pb2 as pb
from taihu.worker.engine.base.layer import Layer
from taihu.worker.engine.layers.batch_norm import BatchNorm
from taihu.worker.engine.layers.branches import Auxiliary, Concat
from taihu.worker.engine.layers.containers import Residual, Sequential
from taihu.worker.engine.layers.convolution import Conv2d
from taihu.worker.engine.layers.dense import Dropout, Flatten, Linear, ReLU
from taihu.worker.engine.layers.pooling import AvgPool2d, GlobalAvgPool, MaxPool2d
from taihu.worker.engine.layers.response_norm import LocalResponseNorm

_ENDS: Final = frozenset({"SoftmaxWithLoss", "Softmax", "SigmoidCrossEntropyLoss", "EuclideanLoss"})
_JOINS: Final = frozenset({"Concat", "Eltwise"})
_LOOKERS_ON: Final = frozenset({"Accuracy", "Silence"})
_DEEPEST: Final = 50


def layers_of_net(path: Path, outputs: int) -> Layer:
    """The layers of a network's training, from its data to its loss.

    Layers of data are left out, as the job has its own, and so are Accuracy and whatever is for tests alone. A side
    branch that ends in a loss is an auxiliary classifier. Weights of the fillers `gaussian`, `uniform`, `xavier` and
    `msra` begin with normal values of the same variance.

    Args:
        path: of the file.
        outputs: that each classifier must have.

    Raises:
        ModelError: it cannot be read, or holds what this engine does not have; the message names the layer.
    """
    return _Net(path, read_net(path), outputs).root()


@dataclass(frozen=True)
class _Node:
    """A layer of the file; blobs have numbers of their own, as a layer may write over what it reads."""

    layer: Any
    bottoms: tuple[int, ...]
    tops: tuple[int, ...]

    @property
    def ends(self) -> bool:
        """Whether a chain ends here: branches come together, or the loss is computed."""
        return self.layer.type in _JOINS or self.layer.type in _ENDS


@dataclass(frozen=True)
class _Chain:
    """Layers one after another, the node where they end, and the blob that it reads of them."""

    layers: Sequence[Layer]
    end: _Node
    blob: int


class _Net:
    """A network while it is followed from its data."""

    def __init__(self, path: Path, net: Any, outputs: int) -> None:
        self._path, self._outputs = path, outputs
        blobs = {name: number for number, name in enumerate(net.input)}
        self._sources = list(blobs.values())
        self._users: dict[int, list[_Node]] = {}
        count = len(blobs)
        for layer in filter(_trains, net.layer):
            missing = [name for name in layer.bottom if name not in blobs]
            if missing:
                self._refuse(layer, f"no layer before it makes {missing[0]!r}")
            bottoms = tuple(blobs[name] for name in layer.bottom)
            tops = tuple(range(count, count + len(layer.top)))
            count += len(tops)
            blobs.update(zip(layer.top, tops, strict=True))
            if not bottoms:
                self._sources += tops[:1]
            elif layer.type not in _LOOKERS_ON:
                node = _Node(layer, bottoms, tops)
                # Of a loss the first is what the layers say, the second are labels.
                for blob in dict.fromkeys(bottoms[:1] if layer.type in _ENDS else bottoms):
                    self._users.setdefault(blob, []).append(node)

    def root(self) -> Layer:
        """All layers from the data to the last loss."""
        if len(self._sources) != 1:
            raise ModelError(f"model {self._path}: expected one layer of data in training, seen {len(self._sources)}")
        data = self._sources[0]
        chain = self._chain(self._users.get(data, []), data, is_rows=False, depth=0)
        if chain.end.layer.type in _JOINS:
            self._refuse(chain.end.layer, "its branches do not come from one blob")
        return Sequential(chain.layers)

    def _refuse(self, layer: Any, why: str) -> NoReturn:
        raise ModelError(f"model {self._path}: layer {layer.name or layer.type} ({layer.type}): {why}")

    def _chain(self, users: Sequence[_Node], blob: int, *, is_rows: bool, depth: int) -> _Chain:
        """The layers that follow from a blob by its `users`; `is_rows` says that it holds no images any more."""
        if depth > _DEEPEST:
            raise ModelError(f"model {self._path}: expected branches within at most {_DEEPEST} others")
        layers: list[Layer] = []
        before: Any = None
        while users:
            node, is_split = users[0], len(users) > 1
            if is_split:
                self._check_normalised(before)
                node = self._branches(users, blob, layers, is_rows=is_rows, depth=depth)
            if node.layer.type in _ENDS or (node.ends and not is_split):
                self._check_normalised(before)
                return _Chain(layers, node, blob)
            if not is_split and not self._scales(node.layer, before):
                self._check_normalised(before)
                layers += self._made(node.layer, is_rows=is_rows)
            before = node.layer
            is_rows = is_rows or isinstance(layers[-1], Flatten | Linear | GlobalAvgPool)
            if len(node.tops) != 1:
                self._refuse(node.layer, f"expected one output, seen {len(node.tops)}")
            blob = node.tops[0]
            users = self._users.get(blob, [])
        raise ModelError(f"model {self._path}: expected a loss at the end of all layers, as SoftmaxWithLoss is")

    def _branches(
        self, users: Sequence[_Node], blob: int, layers: list[Layer], *, is_rows: bool, depth: int
    ) -> _Node:
        """Add what all users of a blob make of it; returns the node where they come together, or the last loss."""
        chains = [self._chain([node], blob, is_rows=is_rows, depth=depth + 1) for node in users]
        joins = list({id(chain.end): chain.end for chain in chains if chain.end.layer.type in _JOINS}.values())
        sides = [chain for chain in chains if chain.end.layer.type in _ENDS]
        if len(joins) > 1:
            self._refuse(users[0].layer, "it and others that read the same come together in several places")
        if not joins:
            *sides, main = sorted(sides, key=lambda chain: _weight_of(chain.end.layer))
            layers += [Auxiliary(Sequential(side.layers), _weight_of(side.end.layer)) for side in sides]
            layers += main.layers
            return main.end
        layers += [Auxiliary(Sequential(side.layers), _weight_of(side.end.layer)) for side in sides]
        (join,) = joins
        inner = {chain.blob: chain.layers for chain in chains if chain.end is join}
        if inner.keys() != set(join.bottoms):
            self._refuse(join.layer, "its branches do not come from one blob")
        layers.append(self._joined(join.layer, [inner[each] for each in join.bottoms]))
        return join

    def _scales(self, layer: Any, before: Any) -> bool:
        """Whether it is the second half of a normalisation, of which both are one layer here."""
        if layer.type != "Scale":
            return False
        if before is None or before.type != "BatchNorm":
            self._refuse(layer, "expected BatchNorm before it")
        return True

    def _check_normalised(self, before: Any) -> None:
        if before is not None and before.type == "BatchNorm":
            self._refuse(before, "expected a layer Scale behind it")

    def _joined(self, layer: Any, branches: Sequence[Sequence[Layer]]) -> Layer:
        if layer.type == "Concat":
            if layer.concat_param.axis != 1:
                self._refuse(layer, f"expected axis 1, that of channels, seen {layer.concat_param.axis}")
            return Concat([Sequential(each) for each in branches])
        own = layer.eltwise_param
        if own.operation != pb.EltwiseParameter.SUM or len(branches) != 2 or any(each != 1 for each in own.coeff):
            self._refuse(layer, "expected the sum of two")
        # The longer one is the body: the other may be what comes, as it is.
        shortcut, body = sorted(branches, key=len)
        return Residual(Sequential(body), Sequential(shortcut) if shortcut else None)

    def _made(self, layer: Any, *, is_rows: bool) -> list[Layer]:
        make = _MAKERS.get(layer.type)
        if make is None:
            known = sorted({*_MAKERS, *_JOINS, *_ENDS, "Scale"})
            self._refuse(layer, f"this engine has none of that type; it has {', '.join(known)}")
        made = make(self, layer)
        return [Flatten(), *made] if layer.type == "InnerProduct" and not is_rows else made

    def convolution(self, layer: Any) -> list[Layer]:
        """Convolution."""
        own = layer.convolution_param
        if any(each != 1 for each in own.dilation):
            self._refuse(layer, "dilation is not known here")
        window = [self._side(layer, own, name, usual) for name, usual in (("kernel", 0), ("stride", 1), ("pad", 0))]
        kernel, stride, padding = window
        filled = self._filled(layer, own)
        return [Conv2d(own.num_output, kernel, stride, padding, bias=own.bias_term, groups=own.group, **filled)]

    def product(self, layer: Any) -> list[Layer]:
        """InnerProduct; whatever computes the loss has the outputs of the job."""
        own = layer.inner_product_param
        readers = [each for top in self._tops_of(layer) for each in self._users.get(top, ())]
        if any(each.layer.type in _ENDS for each in readers) and own.num_output != self._outputs:
            self._refuse(layer, f"it has {counted(own.num_output, 'output')}, the data need {self._outputs}")
        return [Linear(own.num_output, bias=own.bias_term, **self._filled(layer, own))]

    def pooling(self, layer: Any) -> list[Layer]:
        """Pooling; windows may reach over the edge, as Caffe's do."""
        own = layer.pooling_param
        if own.pool == pb.PoolingParameter.STOCHASTIC:
            self._refuse(layer, "expected MAX or AVE, seen STOCHASTIC")
        is_average = own.pool == pb.PoolingParameter.AVE
        if own.global_pooling:
            if not is_average:
                self._refuse(layer, "global_pooling is of AVE here, seen MAX")
            return [GlobalAvgPool()]
        window = [self._side(layer, own, name, usual) for name, usual in (("kernel", 0), ("stride", 1), ("pad", 0))]
        ceil_mode = own.round_mode == pb.PoolingParameter.CEIL
        return [(AvgPool2d if is_average else MaxPool2d)(*window, ceil_mode=ceil_mode)]

    def rectifier(self, layer: Any) -> list[Layer]:
        """ReLU."""
        if layer.relu_param.negative_slope:
            self._refuse(layer, f"expected no negative_slope, seen {layer.relu_param.negative_slope:g}")
        return [ReLU()]

    def response_norm(self, layer: Any) -> list[Layer]:
        """LRN."""
        own = layer.lrn_param
        if own.norm_region != pb.LRNParameter.ACROSS_CHANNELS:
            self._refuse(layer, "expected ACROSS_CHANNELS, seen WITHIN_CHANNEL")
        return [LocalResponseNorm(own.local_size, _short(own.alpha), _short(own.beta), _short(own.k))]

    def dropout(self, layer: Any) -> list[Layer]:
        """Dropout."""
        return [Dropout(_short(layer.dropout_param.dropout_ratio))]

    def batch_norm(self, layer: Any) -> list[Layer]:
        """BatchNorm, with the Scale behind it."""
        own = layer.batch_norm_param
        return [BatchNorm(_short(own.moving_average_fraction), _short(own.eps))]

    def flatten(self, layer: Any) -> list[Layer]:
        """Flatten."""
        return [Flatten()]

    def _tops_of(self, layer: Any) -> tuple[int, ...]:
        nodes = (node for users in self._users.values() for node in users if node.layer is layer)
        return next(nodes).tops

    def _side(self, layer: Any, own: Any, name: str, usual: int) -> int:
        """One number of a window, which has to be square."""
        listed = {"kernel": "kernel_size"}.get(name, name)
        given = list(getattr(own, listed))
        given += [getattr(own, f"{name}_{axis}") for axis in "hw" if own.HasField(f"{name}_{axis}")]
        if len(set(given)) > 1:
            self._refuse(layer, f"expected the same {listed} both ways, seen {' and '.join(map(str, given))}")
        return int(given[0]) if given else usual

    def _filled(self, layer: Any, own: Any) -> dict[str, float]:
        """Arguments for initial values: weights of a deviation, or of a gain over the inputs; one value of biases."""
        filled: dict[str, float] = {}
        filler = own.weight_filler
        if own.HasField("weight_filler"):
            if filler.type == "gaussian" and not filler.mean:
                filled["deviation"] = _short(filler.std)
            elif filler.type == "uniform" and filler.min == -filler.max:
                filled["deviation"] = _short(filler.max) / 3**0.5
            elif filler.type in _GAINS:
                filled["gain"] = _GAINS[filler.type]
            elif filler.type == "constant" and not filler.value:
                filled["deviation"] = 0.0
            else:
                self._refuse(layer, f"weights of {filler.type} around something else than 0 are not known here")
        if own.bias_term and own.bias_filler.type == "constant" and own.bias_filler.value:
            filled["bias_value"] = _short(own.bias_filler.value)
        return filled


_GAINS: Final[Mapping[str, float]] = MappingProxyType({"xavier": 1.0, "msra": 2.0})
_MAKERS: Final[Mapping[str, Callable[[_Net, Any], list[Layer]]]] = MappingProxyType(
    {
        "Convolution": _Net.convolution,
        "InnerProduct": _Net.product,
        "Pooling": _Net.pooling,
        "ReLU": _Net.rectifier,
        "LRN": _Net.response_norm,
        "Dropout": _Net.dropout,
        "BatchNorm": _Net.batch_norm,
        "Flatten": _Net.flatten,
    }
)


def _trains(layer: Any) -> bool:
    """Whether a layer is there in training."""
    included = not layer.include or any(rule.phase == pb.TRAIN for rule in layer.include)
    return included and not any(rule.phase == pb.TRAIN for rule in layer.exclude)


def _weight_of(loss: Any) -> float:
    return _short(loss.loss_weight[0]) if loss.loss_weight else 1.0


def _short(value: float) -> float:
    """The number that was written: the file's are fp32."""
    return float(f"{value:.7g}")
