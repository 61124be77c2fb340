"""Frames against protobuf itself: the codec is only a faster way to write and read the same message."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.checksums import crc32c_by_table, header_checksum, signed
from support.frames import changed, header_of, question
from support.strategies import CHARACTERS

from taihu.core.base.errors import FrameError
from taihu.core.base.words import told
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.wire.frames.codec import (
    decode_frame,
    encode_frame,
    frame_from_message,
    layout_from_message,
    layout_to_message,
    read_frame,
)
from taihu.core.wire.frames.headers import Address, At, FrameHeader, ValueType
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import (
    ActivationPart,
    Encoding,
    Farewell,
    Gradients,
    Kind,
    Parameters,
    Question,
    Rates,
    RingSegment,
    SparseMessage,
    Summed,
)
from taihu.core.wire.frames.limits import MAX_PAYLOAD_BYTES
from taihu.protos import tensor_pb2

Values = NDArray[np.float32]

quick = settings(deadline=None)

UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
SPECIAL = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x80000000, 1], dtype=np.uint32)


@st.composite
def values(draw: st.DrawFn) -> list[Values]:
    """Pieces of any bits, of which every fourth is of a special value."""
    sizes, seed = draw(st.lists(st.integers(0, 40), max_size=6)), draw(UINT32)
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, sum(sizes), dtype=np.uint32)
    bits = np.where(rng.random(len(bits)) < 0.25, rng.choice(SPECIAL, len(bits)), bits)
    return np.split(bits.view(np.float32), np.cumsum(sizes)[:-1]) if sizes else []


KINDS: dict[type[Kind], st.SearchStrategy[Kind]] = {
    Gradients: st.builds(Gradients, st.integers(0, 32).map(lambda power: 2.0**power), st.booleans()),
    Rates: st.just(Rates()),
    Question: st.just(Question()),
    Summed: st.builds(Summed, st.floats(allow_nan=False, allow_infinity=False), st.booleans()),
    Parameters: st.just(Parameters()),
    RingSegment: st.builds(RingSegment, UINT32, UINT32),
    ActivationPart: st.builds(ActivationPart, UINT32),
    SparseMessage: st.builds(SparseMessage, UINT32, UINT32),
    # Text of others is one line.
    Farewell: st.builds(Farewell, st.text(CHARACTERS, max_size=20).map(told)),
}


JOBS = st.text(CHARACTERS, max_size=12) | CHARACTERS.map(lambda each: 150 * each)
# The sender's incarnation and rank; plan, step, attempt, group and offset.
NUMBERS = st.tuples(UINT64, st.none() | UINT32, UINT32, UINT64, UINT32, UINT32, st.integers(0, 2**63 - 1))
ENCODINGS = {kind: sorted(kind.encodings, key=lambda each: each.value) for kind in KINDS}
DENSE_KINDS = st.one_of([KINDS[kind] for kind in KINDS if Encoding.DENSE in kind.encodings])


def header_by(
    draw: st.DrawFn, kind: Kind, encoding: Encoding, elements: int, value_type: ValueType, *, selected: int = 0
) -> FrameHeader:
    """A header of any sender and address."""
    incarnation, rank, plan, step, attempt, group, offset = draw(NUMBERS)
    address = Address(At(plan, step, attempt), group, min(offset, 2**63 - 1 - elements), elements)
    return FrameHeader(Sender(draw(JOBS), incarnation, rank), address, kind, encoding, value_type, selected)


@st.composite
def frames(draw: st.DrawFn) -> tuple[FrameHeader, list[Values]]:
    pieces = draw(values())
    return header_by(draw, draw(DENSE_KINDS), Encoding.DENSE, sum(map(len, pieces)), ValueType.FP32), pieces


def small_frame() -> bytes:
    return encode_frame(header_of("job", 1, 1, 1, 0, 0, 9, 2), [np.arange(9, dtype=np.float32)])


def read_by_protobuf(message: bytes) -> tuple[FrameHeader, bytes] | None:
    """Header and payload by protobuf's own parser and the rules of `tensor.proto`; None when it is no frame."""
    try:
        frame = tensor_pb2.Frame.FromString(message)
    except DecodeError:
        return None
    header = frame.header
    kind = kind_by_protobuf(header)
    if kind is None or not is_whole(frame):
        return None
    if header.data_type != tensor_pb2.DATA_TYPE_FLOAT32 or len(frame.payload) != 4 * header.address.count:
        return None
    if header.encoding != tensor_pb2.ENCODING_DENSE or header.selected:
        return None
    sender, address = header.sender, header.address
    if address.offset + address.count >= 2**63:
        return None
    seen = FrameHeader(
        Sender(sender.job, sender.incarnation, sender.rank if sender.HasField("rank") else None),
        Address(At(address.plan, address.step, address.attempt), address.group, address.offset, address.count),
        kind,
    )
    return seen, frame.payload


def is_whole(frame: tensor_pb2.Frame) -> bool:
    header = frame.header
    is_header = header.checksum == header_checksum(header) and not any(header.padding)
    return is_header and header.payload_checksum == crc32c_by_table(frame.payload)


def kind_by_protobuf(header: tensor_pb2.Frame.Header) -> Kind | None:
    """The dense kind that the header names, its fields by their names in `tensor.proto`."""
    kinds: dict[str, type[Any]] = {
        "gradients": Gradients,
        "rates": Rates,
        "summed": Summed,
        "parameters": Parameters,
        "ring_segment": RingSegment,
        "part": ActivationPart,
    }
    name = header.WhichOneof("kind")
    if name not in kinds:
        return None
    if not kind_makes_sense(header):
        return None
    message = getattr(header, name)
    fields = {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
    if name == "gradients":
        fields["loss_scale"] = fields["loss_scale"] or 1.0
    kind: Kind = kinds[name](**fields)
    return kind


def kind_makes_sense(header: tensor_pb2.Frame.Header) -> bool:
    return math.isfinite(header.summed.completed_s) and 0.0 <= header.gradients.loss_scale < math.inf


def check_against_protobuf(message: bytes) -> None:
    expected = read_by_protobuf(message)
    if expected is None:
        with pytest.raises(FrameError) as caught:
            decode_frame(message)
        assert len(str(caught.value).splitlines()) == 1
        return
    header, values = decode_frame(message)
    assert expected == (header, values.tobytes())
    assert values.flags.aligned
    assert values.dtype == np.float32


def length_prefixed(tag: int, content: bytes, padded_to: int = 1) -> bytes:
    """A field as protobuf writes it, its length in at least `padded_to` bytes."""
    return bytes([tag]) + varint(len(content), padded_to) + content


def varint(value: int, padded_to: int = 1) -> bytes:
    out = bytearray()
    while value > 0x7F or len(out) < padded_to - 1:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@quick
@given(frames())
def test_decoding_gives_back_every_bit_as_an_aligned_view(frame: tuple[FrameHeader, list[Values]]) -> None:
    header, pieces = frame
    message = encode_frame(header, pieces)
    seen, values = decode_frame(message)
    assert seen == header
    assert values.tobytes() == b"".join(piece.tobytes() for piece in pieces)
    assert values.dtype == np.float32
    assert not values.flags.writeable
    if len(values):
        assert values.ctypes.data % 4 == 0
        assert np.shares_memory(values, np.frombuffer(message, dtype=np.uint8))


@quick
@given(frames())
def test_protobuf_reads_what_the_codec_writes(frame: tuple[FrameHeader, list[Values]]) -> None:
    header, pieces = frame
    message = encode_frame(header, pieces)
    assert read_by_protobuf(message) == (header, b"".join(piece.tobytes() for piece in pieces))
    parsed = tensor_pb2.Frame.FromString(message)
    assert frame_from_message(parsed)[0] == header
    assert frame_from_message(parsed)[1].tobytes() == parsed.payload


@quick
@given(frames(), st.booleans(), st.integers(0, 2))
def test_the_codec_reads_what_protobuf_writes_in_any_order(
    frame: tuple[FrameHeader, list[Values]], payload_first: bool, unknown_at: int
) -> None:
    header, pieces = frame
    whole = tensor_pb2.Frame.FromString(encode_frame(header, pieces))
    whole.header.ClearField("padding")
    parts = [
        tensor_pb2.Frame(header=whole.header).SerializeToString(),
        tensor_pb2.Frame(payload=whole.payload).SerializeToString(),
    ]
    if payload_first:
        parts.reverse()
    unknown_field = b"\xfa\x3f\x01x"
    parts.insert(unknown_at, unknown_field)
    for message in (whole.SerializeToString(), b"".join(parts)):
        seen, values = decode_frame(message)
        assert seen == header
        assert values.tobytes() == whole.payload
        assert values.flags.aligned


@quick
@given(st.integers(0, 15))
def test_a_payload_at_any_offset_of_a_foreign_message_is_read(shift: int) -> None:
    whole = tensor_pb2.Frame.FromString(small_frame())
    whole.header.padding = bytes(shift)
    seen, values = decode_frame(whole.SerializeToString())
    assert seen.address.elements == 9
    assert values.flags.aligned
    np.testing.assert_array_equal(values, np.arange(9, dtype=np.float32))


def test_a_frame_cut_off_anywhere_is_refused() -> None:
    message = small_frame()
    for length in range(len(message)):
        assert read_by_protobuf(message[:length]) is None
        with pytest.raises(FrameError):
            decode_frame(message[:length])


def test_a_frame_that_goes_on_is_read_as_protobuf_reads_it() -> None:
    for last in range(256):
        check_against_protobuf(small_frame() + bytes([last]))
        check_against_protobuf(small_frame() + bytes([0x12, last]))


def test_every_corruption_of_one_byte_is_read_as_protobuf_reads_it() -> None:
    message = bytearray(small_frame())
    payload_start = len(message) - 36
    for position in range(payload_start):
        right = message[position]
        for wrong in range(256):
            message[position] = wrong
            check_against_protobuf(bytes(message))
        message[position] = right


@quick
@given(st.binary(max_size=120))
def test_random_bytes_are_refused(message: bytes) -> None:
    check_against_protobuf(message)
    with pytest.raises(FrameError):
        decode_frame(message)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(st.sampled_from([0x0A, 0x12, 0x7A, 0x0B, 0x10]), st.integers(0, 2), st.integers(1, 11)), max_size=5
    )
)
def test_repeated_shuffled_and_oddly_written_fields_are_read_as_protobuf_reads_them(
    fields: list[tuple[int, int, int]],
) -> None:
    """A length may be written in more bytes than it needs, a header may come in parts, the last payload wins."""
    whole = tensor_pb2.Frame.FromString(small_frame())
    headers = [
        whole.header.SerializeToString(),
        tensor_pb2.Frame.Header(sender=tensor_pb2.Sender(job="other", rank=7)).SerializeToString(),
        b"\x0a\x02\xff\xfe",
    ]
    payloads = [whole.payload, whole.payload[4:], b""]
    message = b"".join(
        length_prefixed(tag, (headers if tag == 0x0A else payloads)[choice], padded_to)
        for tag, choice, padded_to in fields
    )
    check_against_protobuf(message)


@quick
@given(st.integers(1, 11), st.integers(1, 11))
def test_lengths_in_more_bytes_than_needed_are_read_as_protobuf_reads_them(header_size: int, payload: int) -> None:
    whole = tensor_pb2.Frame.FromString(small_frame())
    check_against_protobuf(
        length_prefixed(0x0A, whole.header.SerializeToString(), header_size)
        + length_prefixed(0x12, whole.payload, payload)
    )


@quick
@given(st.integers(0, 2**64 - 1).filter(lambda count: count != 4))
def test_a_count_that_is_not_the_payloads_is_refused(count: int) -> None:
    frame = tensor_pb2.Frame.FromString(
        encode_frame(header_of("job", 1, 1, 1, 0, 0, 4), [np.zeros(4, dtype=np.float32)])
    )
    frame.header.address.count = count
    signed(frame)
    with pytest.raises(FrameError, match=f"16 bytes: expected {count} float32 values"):
        decode_frame(frame.SerializeToString())
    with pytest.raises(FrameError, match=f"expected {count} float32 values"):
        frame_from_message(frame)


@quick
@given(st.integers(-(2**31), 2**31 - 1).filter(lambda kind: kind != tensor_pb2.DATA_TYPE_FLOAT32))
@example(tensor_pb2.DATA_TYPE_UNSPECIFIED)
@example(tensor_pb2.DATA_TYPE_FLOAT16)
@example(tensor_pb2.DATA_TYPE_BFLOAT16)
@example(tensor_pb2.DATA_TYPE_FLOAT64)
@example(ValueType.INT8.value)
@example(ValueType.INT2.value)
def test_another_data_type_is_refused(kind: int) -> None:
    known: dict[int, ValueType] = {value_type.value: value_type for value_type in ValueType}
    frame = tensor_pb2.Frame.FromString(small_frame())
    frame.header.MergeFromString(b"\x18" + varint(kind % 2**64))
    typed = signed(frame).header.SerializeToString()
    message = length_prefixed(0x0A, typed) + length_prefixed(0x12, frame.payload)
    reason = rf"data type {kind}: expected 1 \(float32\)"
    if kind in known:
        label, is_few = known[kind].label, known[kind].few_bits
        of_few = f"frame encoding dense, {label}: expected sparse"
        reason = of_few if is_few else f"frame payload of 36 bytes: expected 9 {label} values"
    with pytest.raises(FrameError, match=reason):
        decode_frame(message)


def test_a_payload_of_the_largest_size_passes_and_one_value_more_does_not() -> None:
    most = MAX_PAYLOAD_BYTES // 4
    values = np.arange(most + 1, dtype=np.float32)
    _, seen = decode_frame(encode_frame(header_of("job", 1, 1, 1, 0, 0, most), [values[:most]]))
    np.testing.assert_array_equal(seen, values[:most])
    message = encode_frame(header_of("job", 1, 1, 1, 0, 0, most + 1), [values])
    with pytest.raises(FrameError, match=f"at most {MAX_PAYLOAD_BYTES} bytes"):
        decode_frame(message)
    with pytest.raises(FrameError, match=f"at most {MAX_PAYLOAD_BYTES} bytes"):
        frame_from_message(tensor_pb2.Frame.FromString(message))


def test_a_question_has_no_values() -> None:
    header = question("job", 1, 1, 1, 0, 0, 9, 2)
    frame = read_frame(encode_frame(header, ()))
    assert (frame.header, frame.values.size, frame.moved_bytes, header.is_dense) == (header, 0, 0, False)
    with pytest.raises(FrameError, match="none with float32 values: expected a dense one"):
        decode_frame(encode_frame(header, ()))
    with pytest.raises(FrameError, match="expected 0 float32 values"):
        read_frame(encode_frame(header, (np.zeros(9, dtype=np.float32),)))


@st.composite
def any_headers(draw: st.DrawFn) -> tuple[FrameHeader, bytes]:
    """A header of any kind in any encoding that the kind may have, and a payload that fits it."""
    kind = draw(st.sampled_from(list(KINDS)))
    encoding = draw(st.sampled_from(ENCODINGS[kind]))
    types = [each for each in ValueType if encoding is Encoding.SPARSE or not each.few_bits]
    value_type, elements = draw(st.sampled_from(types)), draw(st.integers(0, 40))
    selected = draw(st.integers(0, elements)) if encoding is Encoding.SPARSE else 0
    header = header_by(draw, draw(KINDS[kind]), encoding, elements, value_type, selected=selected)
    sections = draw(st.binary(max_size=9)) if encoding is Encoding.SPARSE else b""
    held = elements if encoding is Encoding.DENSE else selected
    return header, b"v" * value_type.bytes_of(held) + sections


@settings(deadline=None, max_examples=300)
@given(any_headers())
def test_every_kind_in_every_encoding_comes_back_equal(frame: tuple[FrameHeader, bytes]) -> None:
    header, payload = frame
    seen = read_frame(encode_frame(header, [np.frombuffer(payload, dtype=np.uint8)]))
    assert seen.header == header
    assert type(seen.header.kind) is type(header.kind)
    assert seen.values.tobytes() + seen.sections.tobytes() == payload


@quick
@given(any_headers(), st.sampled_from(list(Encoding)))
def test_a_kind_in_an_encoding_that_it_has_not_is_refused(
    frame: tuple[FrameHeader, bytes], encoding: Encoding
) -> None:
    header, payload = frame
    message = encode_frame(replace(header, encoding=encoding), [np.frombuffer(payload, dtype=np.uint8)])
    if encoding in header.kind.encodings:
        return
    with pytest.raises(FrameError, match=f"sent {header.kind.label} with encoding {encoding.name.lower()}"):
        read_frame(message)


@settings(deadline=None, max_examples=300)
@given(any_headers(), st.data())
def test_hostile_headers_are_frame_errors(frame: tuple[FrameHeader, bytes], data: st.DataObject) -> None:
    """Whatever one byte says, there is a header that makes sense, or a FrameError of one line."""
    message = bytearray(encode_frame(frame[0], [np.frombuffer(frame[1], dtype=np.uint8)]))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    reason = ""
    try:
        header = read_frame(bytes(message)).header
    except FrameError as error:
        reason = str(error)
    assert len(reason.splitlines()) <= 1
    if not reason:
        assert header.encoding in header.kind.encodings
        assert header.address.offset + header.address.elements < 2**63


def test_a_frame_of_no_kind_is_refused() -> None:
    frame = tensor_pb2.Frame.FromString(small_frame())
    frame.header.ClearField("kind")
    signed(frame)
    with pytest.raises(FrameError, match="a frame of no kind that is known to this version"):
        read_frame(frame.SerializeToString())


def test_a_range_that_no_array_has_is_refused() -> None:
    header = header_of("job", 1, 1, 1, 0, 2**63 - 9, 9, 2)
    with pytest.raises(FrameError, match="frame of 9 values at offset 9223372036854775799"):
        read_frame(encode_frame(header, [np.zeros(9, dtype=np.float32)]))
    last = changed(header, offset=2**63 - 10)
    assert read_frame(encode_frame(last, [np.zeros(9, dtype=np.float32)])).header == last


@pytest.mark.parametrize(
    "kind", [Gradients, Question, Summed, Parameters, RingSegment, ActivationPart, SparseMessage, Farewell]
)
def test_a_receiver_says_what_it_expected(kind: type[Kind]) -> None:
    header = header_of("job", 1, 1, 1, 0, 0, 9, 2, kind=ActivationPart(3))
    if kind is ActivationPart:
        assert header.expect(ActivationPart) == ActivationPart(3)
        return
    with pytest.raises(FrameError, match=f"^worker 2 sent a part of a transfer: expected {kind.label}$"):
        raise header.unexpected(kind)


def test_the_values_of_a_shared_frame_are_elsewhere() -> None:
    header = header_of("job", 1, 1, 1, 0, 0, 9, 2, encoding=Encoding.SHARED)
    message = encode_frame(header, [])
    frame = read_frame(message)
    assert (frame.header, len(frame.values), frame.size_bytes) == (header, 0, 0)
    parsed = tensor_pb2.Frame.FromString(message)
    assert (parsed.header.encoding, parsed.payload) == (tensor_pb2.ENCODING_SHARED, b"")
    with pytest.raises(FrameError, match="shared with float32 values: expected a dense one"):
        decode_frame(message)
    with pytest.raises(FrameError, match="frame payload of 36 bytes: expected 0"):
        read_frame(encode_frame(header, [np.zeros(9, dtype=np.float32)]))


def test_a_header_of_any_size_is_read() -> None:
    header = header_of("x" * 200_000, 1, 1, 1, 0, 0, 1)
    seen, values = decode_frame(encode_frame(header, [np.ones(1, dtype=np.float32)]))
    assert seen == header
    assert values.tolist() == [1.0]


NAMES = st.text(CHARACTERS, min_size=1, max_size=8)
TENSORS = st.builds(TensorSpec, NAMES, st.lists(st.integers(0, 2**40), max_size=4).map(tuple))
LAYERS = st.builds(LayerSpec, NAMES, st.lists(TENSORS, max_size=3).map(tuple), st.integers(0, 3))
LAYOUTS = st.lists(LAYERS, max_size=5).map(lambda layers: Layout(tuple(layers)))


@quick
@given(LAYOUTS)
def test_layouts_come_back_equal(layout: Layout) -> None:
    again = layout_from_message(tensor_pb2.Layout.FromString(layout_to_message(layout).SerializeToString()))
    assert again == layout
    assert again.digest == layout.digest
    assert layout.difference(again) is None


@quick
@given(st.lists(st.integers(0, 9), max_size=3), st.integers(-(2**63), -1), st.integers(0, 3))
def test_a_negative_dimension_is_refused(shape: list[int], negative: int, at: int) -> None:
    shape.insert(at, negative)
    spec = tensor_pb2.TensorSpec(name="weight", shape=shape)
    message = tensor_pb2.Layout(layers=[tensor_pb2.LayerSpec(name="conv1", tensors=[spec])])
    with pytest.raises(FrameError, match=r"conv1/weight.*-"):
        layout_from_message(message)


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf])
def test_a_loss_scale_that_is_none_is_refused(scale: float) -> None:
    frame = tensor_pb2.Frame()
    frame.header.data_type = tensor_pb2.DATA_TYPE_FLOAT32
    frame.header.gradients.loss_scale = scale
    signed(frame)
    with pytest.raises(FrameError, match="loss scale"):
        decode_frame(frame.SerializeToString())
