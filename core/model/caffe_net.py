"""Networks of Caffe in their text form, as messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from google.protobuf import text_format

from taihu.core.base.errors import ModelError
from taihu.core.base.words import counted, one_line
from taihu.core.model.names import net_file
from taihu.protos import caffe_net_pb2 as pb

_LARGEST_FILE: Final = 4 << 20


def read_net(path: Path) -> Any:
    """The `NetParameter` in a file; fields that models are not made of are left out.

    Raises:
        ModelError: it cannot be read, is larger than 4 MiB, or has no layers.
    """
    net = pb.NetParameter()
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ModelError(f"model {path}: expected a network of at most {_LARGEST_FILE >> 20} MiB of text")
        text_format.Parse(path.read_text(encoding="utf-8"), net, allow_unknown_field=True)
    except OSError as error:
        raise ModelError(f"model {path}: cannot be read: {error.strerror}") from None
    except (text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"model {path}: expected a network of Caffe as text: {one_line(str(error))}") from None
    if not net.layer:
        raise ModelError(
            f"model {path}: it has no layer {{ ... }}; of an older form, layers {{ ... }}, Caffe's "
            "upgrade_net_proto_text makes this one"
        )
    return net


def notes_on_model(name: str) -> tuple[str, ...]:
    """Lines on what is in the file of a job's model and not in the model.

    Raises:
        ModelError: the file cannot be read.
    """
    path = net_file(name)
    if path is None:
        return ()
    layers = read_net(path).layer
    rates = sum(any((each.lr_mult, each.decay_mult) != (1, 1) for each in layer.param) for layer in layers)
    if not rates:
        return ()
    has = "has" if rates == 1 else "have"
    left_out = f"{counted(rates, 'layer')} {has} lr_mult or decay_mult"
    return (f"{path}: {left_out}; all parameters have the rate of the job",)
