"""Frames against protobuf itself: the codec is only a faster way to write and read the same message."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from protos import tensor_pb2
from taihu.errors import FrameError
from taihu.layout import LayerSpec, Layout, TensorSpec
from taihu.wire.codec import (
    MAX_PAYLOAD_BYTES,
    FrameHeader,
    decode_frame,
    encode_frame,
    layout_from_message,
    layout_to_message,
)

UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
PIECES = st.lists(arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32)), max_size=5)


def header_of(draw: st.DrawFn, count: int) -> FrameHeader:
    return FrameHeader(
        job=draw(st.text(max_size=150)),
        incarnation=draw(UINT64),
        plan=draw(UINT32),
        step=draw(UINT64),
        group=draw(UINT32),
        offset=draw(UINT64),
        count=count,
        sender=draw(st.none() | UINT32),
    )


@st.composite
def frames(draw: st.DrawFn) -> tuple[FrameHeader, list[np.typing.NDArray[np.float32]]]:
    pieces = draw(PIECES)
    return header_of(draw, sum(map(len, pieces))), pieces


@given(frames())
def test_decoding_gives_back_the_bits_as_an_aligned_view(
    frame: tuple[FrameHeader, list[np.typing.NDArray[np.float32]]],
) -> None:
    header, pieces = frame
    message = encode_frame(header, pieces)
    seen, values = decode_frame(message)
    assert seen == header
    assert values.tobytes() == b"".join(piece.tobytes() for piece in pieces)
    assert values.ctypes.data % 4 == 0 or not len(values)
    assert not values.flags.owndata
    assert not values.flags.writeable


@given(frames())
def test_protobuf_reads_what_the_codec_writes(
    frame: tuple[FrameHeader, list[np.typing.NDArray[np.float32]]],
) -> None:
    header, pieces = frame
    parsed = tensor_pb2.Frame.FromString(encode_frame(header, pieces))
    assert parsed.payload == b"".join(piece.tobytes() for piece in pieces)
    assert parsed.header.job == header.job
    assert (parsed.header.step, parsed.header.offset, parsed.header.count) == (
        header.step,
        header.offset,
        header.count,
    )
    assert parsed.header.HasField("sender") == (header.sender is not None)


@given(frames(), st.booleans())
def test_the_codec_reads_what_protobuf_writes_in_any_order(
    frame: tuple[FrameHeader, list[np.typing.NDArray[np.float32]]], payload_first: bool
) -> None:
    header, pieces = frame
    whole = tensor_pb2.Frame.FromString(encode_frame(header, pieces))
    whole.header.ClearField("padding")
    parts = [
        tensor_pb2.Frame(header=whole.header).SerializeToString(),
        tensor_pb2.Frame(payload=whole.payload).SerializeToString(),
    ]
    unknown_field = b"\xfa\x3f\x01x"
    message = b"".join(reversed(parts) if payload_first else parts) + unknown_field
    seen, values = decode_frame(message)
    assert seen == header
    assert values.tobytes() == whole.payload
    assert values.flags.aligned


def test_a_frame_cut_off_anywhere_is_refused() -> None:
    message = encode_frame(FrameHeader("job", 1, 1, 1, 0, 0, 9, 2), [np.arange(9, dtype=np.float32)])
    for length in range(len(message)):
        with pytest.raises(FrameError):
            decode_frame(message[:length])


@given(st.binary(max_size=80))
def test_random_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(FrameError):
        decode_frame(message)


@given(st.integers(0, 60), st.integers(0, 255))
def test_a_corrupted_byte_never_raises_anything_else(position: int, value: int) -> None:
    message = bytearray(encode_frame(FrameHeader("job", 1, 1, 1, 0, 0, 9, 2), [np.arange(9, dtype=np.float32)]))
    message[position % len(message)] = value
    try:
        header, values = decode_frame(bytes(message))
    except FrameError:
        return
    assert len(values) == header.count


def test_wrong_sizes_and_types_name_what_was_expected() -> None:
    values = np.zeros(4, dtype=np.float32)
    frame = tensor_pb2.Frame.FromString(encode_frame(FrameHeader("job", 1, 1, 1, 0, 0, 4), [values]))
    frame.header.count = 5
    with pytest.raises(FrameError, match="16 bytes: expected 5 float32 values"):
        decode_frame(frame.SerializeToString())
    frame.header.count = 4
    frame.header.data_type = tensor_pb2.DATA_TYPE_UNSPECIFIED
    with pytest.raises(FrameError, match="expected 1"):
        decode_frame(frame.SerializeToString())
    many = MAX_PAYLOAD_BYTES // 4 + 1
    with pytest.raises(FrameError, match="at most"):
        decode_frame(encode_frame(FrameHeader("job", 1, 1, 1, 0, 0, many), [np.zeros(many, dtype=np.float32)]))


NAMES = st.text(min_size=1, max_size=8)
LAYOUTS = st.builds(
    lambda layers: Layout(tuple(layers)),
    st.lists(
        st.builds(
            lambda name, tensors: LayerSpec(name, tuple(tensors)),
            NAMES,
            st.lists(st.builds(TensorSpec, NAMES, st.lists(st.integers(0, 9), max_size=4).map(tuple)), max_size=3),
        ),
        max_size=5,
    ),
)


@given(LAYOUTS)
def test_layouts_come_back_equal(layout: Layout) -> None:
    again = layout_from_message(tensor_pb2.Layout.FromString(layout_to_message(layout).SerializeToString()))
    assert again == layout
    assert again.digest == layout.digest
    assert layout.difference(again) is None


def test_a_negative_dimension_is_refused() -> None:
    spec = tensor_pb2.TensorSpec(name="weight", shape=[3, -1])
    message = tensor_pb2.Layout(layers=[tensor_pb2.LayerSpec(name="conv1", tensors=[spec])])
    with pytest.raises(FrameError, match="conv1/weight"):
        layout_from_message(message)
