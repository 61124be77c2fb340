"""Frames come back from their bytes as they were, and whatever is none is an error of one line."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.checksums import crc32c_by_table
from support.frames import changed, header_of, question, read

from taihu.core.base.errors import DamagedFrameError, FrameError
from taihu.core.wire.frames.format import HEADER_BYTES, message_of, open_header, pack_header, read_message
from taihu.core.wire.frames.headers import Address, At, Frame, FrameHeader, ValueType, dense_values
from taihu.core.wire.frames.identity import Sender
from taihu.core.wire.frames.kinds import (
    KINDS,
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

SENDER = Sender(77, 3)
UINT32 = st.integers(0, 2**32 - 1)
UINT64 = st.integers(0, 2**64 - 1)
DRAWN: dict[type[Kind], st.SearchStrategy[Kind]] = {
    Gradients: st.builds(Gradients, st.integers(0, 32).map(lambda power: 2.0**power), st.booleans()),
    Rates: st.just(Rates()),
    Question: st.just(Question()),
    Summed: st.builds(
        Summed, st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.integers(0, 0xFFFF)
    ),
    Parameters: st.just(Parameters()),
    RingSegment: st.builds(RingSegment, UINT32, UINT32),
    ActivationPart: st.builds(ActivationPart, UINT32),
    SparseMessage: st.builds(SparseMessage, UINT32, UINT32),
    Farewell: st.just(Farewell()),
}
quick = settings(deadline=None)


@st.composite
def frames(draw: st.DrawFn) -> tuple[FrameHeader, bytes]:
    """A header of any kind in any encoding that the kind may have, and a payload that fits it."""
    kind = draw(st.sampled_from(list(DRAWN)))
    encoding = draw(st.sampled_from(sorted(kind.encodings, key=lambda each: each.value)))
    is_sparse = encoding is Encoding.SPARSE
    value_type = draw(st.sampled_from([each for each in ValueType if is_sparse or not each.few_bits]))
    elements, behind = draw(st.integers(0, 40)), draw(st.integers(0, 9))
    selected = {Encoding.SPARSE: min(elements, behind), Encoding.TEXT: behind}.get(encoding, 0)
    held = {Encoding.DENSE: elements, Encoding.SPARSE: selected}.get(encoding, 0)
    size = value_type.bytes_of(held) + (behind if encoding in {Encoding.SPARSE, Encoding.TEXT} else 0)
    at = At(draw(UINT32), draw(UINT64), draw(UINT32))
    address = Address(at, draw(UINT32), draw(st.integers(0, 2**63 - 1 - elements)), elements)
    header = FrameHeader(SENDER, address, draw(DRAWN[kind]), encoding, value_type, selected)
    return header, draw(st.binary(min_size=size, max_size=size))


def written(frame: tuple[FrameHeader, bytes], number: int = 0) -> bytes:
    header, payload = frame
    return message_of(header, [np.frombuffer(payload, dtype=np.uint8)], number)


def header_by_hand(*, payload: bytes = b"", **fields: Any) -> bytes:
    """A header field by field, as the table of the format says."""
    values: dict[str, Any] = {
        "magic": 0x74616869,
        "kind": 1,
        "value_type": 1,
        "encoding": 0,
        "number": 0,
        "plan": 1,
        "step": 5,
        "attempt": 6,
        "group": 9,
        "offset": 0,
        "count": 2,
        "selected": 0,
        "size": len(payload),
        "union": struct.pack("<fB", 1.0, 0),
    }
    values |= fields
    whole = struct.pack("<IBBBBIQIIQQQQ12s", *values.values()) + struct.pack("<I", crc32c_by_table(payload))
    return whole + struct.pack("<I", crc32c_by_table(whole))


def open_by(data: bytes) -> FrameHeader:
    return open_header(memoryview(data), SENDER, "worker 3").header


def test_all_kinds_are_drawn() -> None:
    assert set(DRAWN) == set(KINDS.values())


def test_the_bytes_of_a_frame_are_those_of_the_table() -> None:
    payload = np.arange(2, dtype="<f4").tobytes()
    header = FrameHeader(SENDER, Address(At(1, 5, 6), 9, 0, 2), Gradients())
    assert written((header, payload), 513) == header_by_hand(payload=payload, number=1) + payload
    summed = replace(header, kind=Summed(2.5, True, 7), value_type=ValueType.BF16)
    by_hand = header_by_hand(payload=b"abcd", kind=3, value_type=3, union=struct.pack("<dBH", 2.5, 1, 7))
    assert written((summed, b"abcd")) == by_hand + b"abcd"
    segment = replace(header, kind=RingSegment(3, 4))
    assert pack_header(segment, 8, 0)[60:72] == struct.pack("<II4x", 3, 4)
    assert HEADER_BYTES == len(by_hand) == 80


@settings(deadline=None, max_examples=300)
@given(frames(), st.integers(0, 1000))
def test_a_frame_of_any_kind_comes_back_equal(frame: tuple[FrameHeader, bytes], number: int) -> None:
    header, payload = frame
    message = written(frame, number)
    seen, opening = read_message(message, SENDER, "worker 3")
    assert (seen.header, opening.number) == (header, number % 256)
    assert type(seen.header.kind) is type(header.kind)
    assert seen.values.tobytes() + seen.sections.tobytes() == payload
    assert seen.values.dtype == header.value_type.dtype
    assert seen.values.flags.aligned
    assert not seen.values.flags.writeable
    if len(seen.values):
        assert np.shares_memory(seen.values, np.frombuffer(message, dtype=np.uint8))


@settings(deadline=None, max_examples=300)
@given(frames(), st.data())
def test_whatever_one_byte_says_is_refused(frame: tuple[FrameHeader, bytes], data: st.DataObject) -> None:
    message = bytearray(written(frame))
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedFrameError) as caught:
        read(bytes(message), SENDER)
    assert len(str(caught.value).splitlines()) == 1


@settings(deadline=None, max_examples=300)
@given(frames(), st.lists(st.tuples(st.integers(0, 71), st.integers(0, 255)), min_size=1, max_size=3))
def test_a_hostile_header_makes_sense_or_is_a_frame_error(
    frame: tuple[FrameHeader, bytes], changes: list[tuple[int, int]]
) -> None:
    """Whoever writes checksums that fit can still say nonsense."""
    changed_bytes = bytearray(written(frame)[: HEADER_BYTES - 4])
    for position, value in changes:
        changed_bytes[position] = value
    covered = bytes(changed_bytes)
    reason = ""
    try:
        opening = open_header(memoryview(covered + struct.pack("<I", crc32c_by_table(covered))), SENDER, "worker 3")
    except FrameError as error:
        reason = str(error)
    assert len(reason.splitlines()) <= 1
    if not reason:
        header = opening.header
        assert header.encoding in header.kind.encodings
        assert header.address.offset + header.address.elements < 2**63
        assert header.value_type.bytes_of(header.held) <= opening.payload_bytes <= MAX_PAYLOAD_BYTES


NO_HEADER = "worker 3: not the header of a frame that this version knows"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"magic": 1}, NO_HEADER),
        ({"kind": 0}, NO_HEADER),
        ({"kind": 13}, NO_HEADER),
        ({"value_type": 0}, NO_HEADER),
        ({"value_type": 99}, NO_HEADER),
        ({"encoding": 5}, NO_HEADER),
        ({"kind": 3, "union": struct.pack("<dB", math.nan, 0)}, NO_HEADER),
        ({"kind": 3, "union": struct.pack("<dB", 1.0, 2)}, NO_HEADER),
        ({"union": struct.pack("<fB", 1.0, 2)}, NO_HEADER),
        ({"union": struct.pack("<fB", 0.0, 0)}, NO_HEADER),
        ({"union": struct.pack("<fB", math.inf, 0)}, NO_HEADER),
        ({"union": struct.pack("<fB", math.nan, 0)}, NO_HEADER),
        ({"kind": 2}, "worker 3 sent a question with encoding dense"),
        ({"kind": 5, "encoding": 1}, "worker 3 sent a segment of a ring with encoding sparse"),
        ({"kind": 1, "encoding": 4}, "worker 3 sent gradients with encoding text"),
        ({"selected": 1, "size": 8}, "frame encoding dense, 1 selected: expected none"),
        ({"offset": 2**63 - 2, "size": 8}, "frame of 2 values at offset 9223372036854775806"),
        ({"offset": 2**64 - 1, "size": 8}, "frame of 2 values at offset 18446744073709551615"),
        ({"count": 1 << 20, "size": MAX_PAYLOAD_BYTES + 4}, "payload of 4194308 bytes: expected at most"),
        ({"count": 2, "size": 9}, "payload of 9 bytes: expected 2 float32 values"),
        ({"value_type": 5, "size": 2}, "frame encoding dense, int8: expected sparse"),
        ({"encoding": 1, "selected": 3, "size": 12}, "expected 3 float32 values of 2 elements"),
        ({"encoding": 1, "count": 9, "selected": 3, "size": 11}, "payload of 11 bytes: expected 3 float32"),
        ({"encoding": 2, "size": 4}, "payload of 4 bytes: expected 0 float32"),
        ({"kind": 8, "encoding": 4, "selected": 3, "size": 4}, "payload of 4 bytes: expected 0 float32"),
        ({"kind": 8, "encoding": 4, "selected": 3, "size": 2}, "payload of 2 bytes: expected 0 float32"),
    ],
)
def test_what_makes_no_sense_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(FrameError) as caught:
        open_by(header_by_hand(**fields))
    assert not isinstance(caught.value, DamagedFrameError)
    assert str(caught.value).startswith(message) or message in str(caught.value)


def test_a_message_cut_off_anywhere_or_with_more_behind_is_refused() -> None:
    message = message_of(header_of(1, 1, 1, 0, 0, 9, 2), [np.arange(9, dtype=np.float32)])
    for length in range(len(message)):
        with pytest.raises(DamagedFrameError):
            read(message[:length])
    with pytest.raises(DamagedFrameError, match="37 bytes behind the header, expected 36"):
        read(message + b"x")


@quick
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(DamagedFrameError):
        read(message)


def test_a_payload_of_the_largest_size_passes_and_one_value_more_does_not() -> None:
    most = MAX_PAYLOAD_BYTES // 4
    values = np.arange(most + 1, dtype=np.float32)
    seen = read(message_of(header_of(1, 1, 1, 0, 0, most), [values[:most]]))
    np.testing.assert_array_equal(dense_values(seen), values[:most])
    with pytest.raises(FrameError, match=f"at most {MAX_PAYLOAD_BYTES} bytes"):
        read(message_of(header_of(1, 1, 1, 0, 0, most + 1), [values]))


def test_a_question_has_no_values() -> None:
    header = question(77, 1, 1, 0, 0, 9, 3)
    frame = read(message_of(header, ()), SENDER)
    assert (frame.header, frame.values.size, frame.moved_bytes, header.is_dense) == (header, 0, 0, False)
    with pytest.raises(FrameError, match="none with float32 values: expected a dense one"):
        dense_values(frame)
    with pytest.raises(FrameError, match="expected 0 float32 values"):
        read(message_of(header, (np.zeros(9, dtype=np.float32),)))


def test_the_values_of_a_shared_frame_are_elsewhere() -> None:
    header = header_of(77, 1, 1, 0, 0, 9, 3, encoding=Encoding.SHARED)
    frame = read(message_of(header, []), SENDER)
    assert (frame.header, len(frame.values), frame.size_bytes, frame.moved_bytes) == (header, 0, 0, 36)
    with pytest.raises(FrameError, match="shared with float32 values: expected a dense one"):
        dense_values(frame)


@pytest.mark.parametrize("text", ["", "out of paper", "zwölf\n" * 3, "\N{SKULL}" * 5000])
def test_a_text_is_one_line(text: str) -> None:
    raw = text.encode()
    header = header_of(77, 0, 0, 0, 0, 0, 3, kind=Farewell(), encoding=Encoding.TEXT, selected=len(raw))
    frame: Frame = read(message_of(header, [np.frombuffer(raw, dtype=np.uint8)]), SENDER)
    assert frame.text.startswith(text[:5].strip())
    assert len(frame.text.splitlines()) <= 1
    assert len(frame.text) < 25_000


def test_a_text_that_is_none_can_be_shown() -> None:
    raw: NDArray[np.uint8] = np.frombuffer(b"\xff\xfe ok", dtype=np.uint8)
    header = header_of(77, 0, 0, 0, 0, 0, 3, kind=Farewell(), encoding=Encoding.TEXT, selected=len(raw))
    assert read(message_of(header, [raw]), SENDER).text.endswith(" ok")


def test_a_range_that_no_array_has_is_refused() -> None:
    header = header_of(77, 1, 1, 0, 2**63 - 9, 9, 3)
    with pytest.raises(FrameError, match="frame of 9 values at offset 9223372036854775799"):
        read(message_of(header, [np.zeros(9, dtype=np.float32)]))
    last = changed(header, offset=2**63 - 10)
    assert read(message_of(last, [np.zeros(9, dtype=np.float32)]), SENDER).header == last


@pytest.mark.parametrize("kind", list(KINDS.values()))
def test_a_receiver_says_what_it_expected(kind: type[Kind]) -> None:
    header = header_of(1, 1, 1, 0, 0, 9, 2, kind=ActivationPart(3))
    if kind is ActivationPart:
        assert header.expect(ActivationPart) == ActivationPart(3)
        return
    with pytest.raises(FrameError, match=f"^worker 2 sent a part of a transfer: expected {kind.label}$"):
        raise header.unexpected(kind)
