"""Networks of Caffe as text, layer by layer, written for these tests."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["alexnet", "cifar10_quick", "googlenet"]

DATA = """\
layer {{
  name: "data" type: "Data" top: "data" top: "label"
  include {{ phase: TRAIN }}
  transform_param {{ mirror: true crop_size: {side} }}
  data_param {{ source: "train_lmdb" batch_size: 32 backend: LMDB }}
}}
layer {{
  name: "data" type: "Data" top: "data" top: "label"
  include {{ phase: TEST }}
  data_param {{ source: "test_lmdb" batch_size: 50 backend: LMDB }}
}}
"""


class Net:
    """A text that grows; methods return the blob that a layer makes."""

    def __init__(self, name: str, side: int) -> None:
        self.text = f'name: "{name}"\n{DATA.format(side=side)}'

    def layer(
        self, name: str, kind: str, bottoms: str | Sequence[str], more: str = "", top: str | None = None
    ) -> str:
        """Any layer, which makes a blob of its own name if no other one is named."""
        read = [bottoms] if isinstance(bottoms, str) else bottoms
        lines = [
            f'name: "{name}"',
            f'type: "{kind}"',
            *(f'bottom: "{each}"' for each in read),
            f'top: "{top or name}"',
        ]
        self.text += f"layer {{\n  {'  '.join(lines)}\n  {more}\n}}\n"
        return top or name

    def convolution(self, name: str, bottom: str, filters: int, kernel: int, more: str = "") -> str:
        """A convolution with fillers, and rates of its own for the bias."""
        return self.layer(
            name,
            "Convolution",
            bottom,
            "param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 decay_mult: 0 } convolution_param { "
            f"num_output: {filters} kernel_size: {kernel} {more} }}",
        )

    def relu(self, blob: str) -> str:
        """A rectifier in the place of what it reads."""
        return self.layer(f"relu_{blob}", "ReLU", blob, top=blob)

    def pool(self, name: str, bottom: str, kind: str, window: tuple[int, int], more: str = "") -> str:
        """Pooling by windows of a size and a stride."""
        kernel, stride = window
        own = f"pooling_param {{ pool: {kind} kernel_size: {kernel} stride: {stride} {more} }}"
        return self.layer(name, "Pooling", bottom, own)

    def product(self, name: str, bottom: str, outputs: int, more: str = "") -> str:
        """A fully connected layer."""
        return self.layer(name, "InnerProduct", bottom, f"inner_product_param {{ num_output: {outputs} {more} }}")

    def loss(self, name: str, bottom: str, weight: float = 1.0) -> None:
        """A loss of classes, and the accuracy beside it."""
        accuracy = f"{name}_accuracy"
        self.layer(accuracy, "Accuracy", [bottom, "label"], "include { phase: TEST }")
        self.layer(name, "SoftmaxWithLoss", [bottom, "label"], f"loss_weight: {weight:g}")


def gaussian(deviation: float, bias: float = 0.0) -> str:
    return (
        f'weight_filler {{ type: "gaussian" std: {deviation:g} }} bias_filler {{ type: "constant" value: {bias:g} }}'
    )


def cifar10_quick(outputs: int = 10) -> str:
    """Caffe's example for CIFAR-10."""
    net = Net("CIFAR10_quick_train", 32)
    blob = net.convolution("conv1", "data", 32, 5, f"pad: 2 stride: 1 {gaussian(0.0001)}")
    blob = net.relu(net.pool("pool1", blob, "MAX", (3, 2)))
    blob = net.relu(net.convolution("conv2", blob, 32, 5, f"pad: 2 {gaussian(0.01)}"))
    blob = net.pool("pool2", blob, "AVE", (3, 2))
    blob = net.relu(net.convolution("conv3", blob, 64, 5, f"pad: 2 {gaussian(0.01)}"))
    blob = net.pool("pool3", blob, "AVE", (3, 2))
    net.loss("loss", net.product("ip2", net.product("ip1", blob, 64, gaussian(0.1)), outputs, gaussian(0.1)))
    return net.text


def alexnet(outputs: int = 1000) -> str:
    """Caffe's AlexNet: two groups, normalised responses behind the first two rectifiers."""
    net = Net("AlexNet", 227)

    def norm(name: str, blob: str) -> str:
        return net.layer(name, "LRN", blob, "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")

    blob = net.relu(net.convolution("conv1", "data", 96, 11, f"stride: 4 {gaussian(0.01)}"))
    blob = net.pool("pool1", norm("norm1", blob), "MAX", (3, 2))
    blob = net.relu(net.convolution("conv2", blob, 256, 5, f"pad: 2 group: 2 {gaussian(0.01, 0.1)}"))
    blob = net.pool("pool2", norm("norm2", blob), "MAX", (3, 2))
    blob = net.relu(net.convolution("conv3", blob, 384, 3, f"pad: 1 {gaussian(0.01)}"))
    blob = net.relu(net.convolution("conv4", blob, 384, 3, f"pad: 1 group: 2 {gaussian(0.01, 0.1)}"))
    blob = net.relu(net.convolution("conv5", blob, 256, 3, f"pad: 1 group: 2 {gaussian(0.01, 0.1)}"))
    blob = net.pool("pool5", blob, "MAX", (3, 2))
    for number in (6, 7):
        blob = net.relu(net.product(f"fc{number}", blob, 4096, gaussian(0.005, 0.1)))
        blob = net.layer(f"drop{number}", "Dropout", blob, "dropout_param { dropout_ratio: 0.5 }", top=blob)
    net.loss("loss", net.product("fc8", blob, outputs, gaussian(0.01)))
    return net.text


XAVIER = 'weight_filler { type: "xavier" } bias_filler { type: "constant" value: 0.2 }'
INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(outputs: int = 1000) -> str:
    """Caffe's GoogLeNet, with two classifiers on its way."""
    net = Net("GoogleNet", 224)

    def rectified(name: str, blob: str, filters: int, kernel: int, more: str = "") -> str:
        return net.relu(net.convolution(name, blob, filters, kernel, f"{more} {XAVIER}"))

    def norm(name: str, blob: str) -> str:
        return net.layer(name, "LRN", blob, "lrn_param { local_size: 5 alpha: 0.0001 beta: 0.75 }")

    def inception(name: str, blob: str) -> str:
        of = f"inception_{name}"
        one, three_reduce, three, five_reduce, five, pooled = INCEPTIONS[name]
        parts = [
            rectified(f"{of}/1x1", blob, one, 1),
            rectified(f"{of}/3x3", rectified(f"{of}/3x3_reduce", blob, three_reduce, 1), three, 3, "pad: 1"),
            rectified(f"{of}/5x5", rectified(f"{of}/5x5_reduce", blob, five_reduce, 1), five, 5, "pad: 2"),
            rectified(f"{of}/pool_proj", net.pool(f"{of}/pool", blob, "MAX", (3, 1), "pad: 1"), pooled, 1),
        ]
        return net.layer(f"{of}/output", "Concat", parts)

    def classifier(name: str, blob: str) -> None:
        blob = net.pool(f"{name}/ave_pool", blob, "AVE", (5, 3))
        blob = rectified(f"{name}/conv", blob, 128, 1)
        blob = net.relu(net.product(f"{name}/fc", blob, 1024, XAVIER))
        blob = net.layer(f"{name}/drop_fc", "Dropout", blob, "dropout_param { dropout_ratio: 0.7 }", top=blob)
        net.loss(f"{name}/loss", net.product(f"{name}/classifier", blob, outputs, XAVIER), 0.3)

    blob = rectified("conv1/7x7_s2", "data", 64, 7, "pad: 3 stride: 2")
    blob = norm("pool1/norm1", net.pool("pool1/3x3_s2", blob, "MAX", (3, 2)))
    blob = rectified("conv2/3x3", rectified("conv2/3x3_reduce", blob, 64, 1), 192, 3, "pad: 1")
    blob = net.pool("pool2/3x3_s2", norm("conv2/norm2", blob), "MAX", (3, 2))
    for name in INCEPTIONS:
        blob = inception(name, blob)
        if name in ("4a", "4d"):
            classifier(f"loss{1 + (name == '4d')}", blob)
        if name in ("3b", "4e"):
            blob = net.pool(f"pool{name[0]}/3x3_s2", blob, "MAX", (3, 2))
    blob = net.pool("pool5/7x7_s1", blob, "AVE", (7, 1))
    blob = net.layer("pool5/drop", "Dropout", blob, "dropout_param { dropout_ratio: 0.4 }", top=blob)
    net.loss("loss3/loss3", net.product("loss3/classifier", blob, outputs, XAVIER))
    return net.text
