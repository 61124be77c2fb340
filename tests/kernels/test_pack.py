from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taihu.kernels.packing import pack, packed_bound, unpack
from taihu.kernels.packing.section_reader import read_sections
from taihu.kernels.packing.section_writer import write_sections

Indices = NDArray[np.int32]
Octets = NDArray[np.uint8]
Pieces = list[tuple[int, int]]
quick = settings(deadline=None, max_examples=60)

EMPTY, DENSE, BITMAP, VARINT, RICE = range(5)


# The format once more, with lists of numbers and strings of bits.


def varint(value: int) -> bytes:
    septets = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([septet | 128 for septet in septets[:-1]] + septets[-1:])


def bytes_of(bits: str) -> bytes:
    """Bits in the order of the wire, the first one is the lowest of the first byte."""
    padded = bits + "0" * (-len(bits) % 8)
    return bytes(int(padded[i : i + 8][::-1], 2) for i in range(0, len(padded), 8))


def rice(gaps: Sequence[int], k: int) -> bytes:
    remainders = "".join(str(gap >> bit & 1) for gap in gaps for bit in range(k))
    return varint(len(gaps)) + bytes([k]) + bytes_of(remainders + "".join("0" * (gap >> k) + "1" for gap in gaps))


def gaps_of(positions: Sequence[int]) -> list[int]:
    return [here - before - 1 for before, here in zip([-1, *positions], positions, strict=False)]


def best_parameter(gaps: Sequence[int]) -> int:
    return min(range(31), key=lambda k: sum(gap >> k for gap in gaps) + (k + 1) * len(gaps))


def section(positions: Sequence[int], length: int, encoding: int, k: int = 0) -> bytes:
    kept = set(positions)
    if encoding == BITMAP:
        return bytes([BITMAP]) + bytes_of("".join("01"[i in kept] for i in range(length)))
    if encoding == VARINT:
        return bytes([VARINT]) + varint(len(positions)) + b"".join(varint(gap) for gap in gaps_of(positions))
    return bytes([encoding]) + (rice(gaps_of(positions), k) if encoding == RICE else b"")


def smallest_section(positions: Sequence[int], length: int) -> bytes:
    if not positions:
        return section(positions, length, EMPTY)
    if len(positions) == length:
        return section(positions, length, DENSE)
    k = best_parameter(gaps_of(positions))
    encodings = (BITMAP, VARINT, RICE) if length < 10_000 else (VARINT, RICE)
    return min((section(positions, length, encoding, k) for encoding in encodings), key=len)


class BrokenError(Exception):
    """The slow decoder's verdict on sections that are none."""


class SlowDecoder:
    """Reads sections bit by bit; everything that is not exactly right is `BrokenError`."""

    def __init__(self, message: bytes) -> None:
        self._bits = "".join(f"{byte:08b}"[::-1] for byte in message)
        self._at = 0

    def positions(self, pieces: Pieces, count: int) -> list[int]:
        found = []
        for start, stop in pieces:
            local = self._section(stop - start)
            if any(position >= stop - start for position in local):
                raise BrokenError
            found += [start + position for position in local]
        if self._at != len(self._bits) or len(found) != count:
            raise BrokenError
        return found

    def _section(self, length: int) -> list[int]:
        encoding = self._number(8)
        if encoding > RICE:
            raise BrokenError
        if encoding in (EMPTY, DENSE):
            return list(range(length)) if encoding == DENSE else []
        if encoding == BITMAP:
            kept = [i for i in range(length) if self._number(1)]
            self._finish_byte()
            return kept
        count = self._varint()
        if not 0 < count <= length:
            raise BrokenError
        gaps = [self._varint() for _ in range(count)] if encoding == VARINT else self._rice(count)
        return [sum(gaps[: i + 1]) + i for i in range(count)]

    def _rice(self, count: int) -> list[int]:
        k = self._number(8)
        if k > 30:
            raise BrokenError
        remainders = [self._number(k) for _ in range(count)]
        quotients = [0] * count
        for i in range(count):
            while not self._number(1):
                quotients[i] += 1
        self._finish_byte()
        return [(quotient << k) + remainder for quotient, remainder in zip(quotients, remainders, strict=True)]

    def _number(self, bits: int) -> int:
        if self._at + bits > len(self._bits):
            raise BrokenError
        self._at += bits
        return int("0" + self._bits[self._at - bits : self._at][::-1], 2)

    def _finish_byte(self) -> None:
        if self._number(-self._at % 8):
            raise BrokenError

    def _varint(self) -> int:
        value = 0
        for i in range(5):
            byte = self._number(8)
            value += (byte & 127) << 7 * i
            if byte < 128:
                if value >= 2**31 or len(varint(value)) != i + 1:
                    raise BrokenError
                return value
        raise BrokenError


# Arrays and selections.


def array_of(pieces: Pieces) -> NDArray[np.int64]:
    return np.array(pieces, dtype=np.int64).reshape(-1, 2)


def received(message: bytes, begin: int = 0) -> Octets:
    """The message as a read-only view that begins somewhere in a larger one."""
    return np.frombuffer(b"\xff" * begin + message + b"\xff" * 9, dtype=np.uint8)[begin : begin + len(message)]


def packed(indices: Indices, pieces: Pieces) -> bytes:
    out = np.empty(packed_bound(len(indices), len(pieces)), dtype=np.uint8)
    values = np.zeros(len(indices), dtype=np.float32)
    _, size = pack(indices, values, array_of(pieces), np.empty_like(values), out)
    return out[:size].tobytes()


def unpacked(message: bytes, pieces: Pieces, count: int) -> list[int]:
    out = np.empty(count, dtype=np.int32)
    unpack(received(message), array_of(pieces), count, out)
    return [int(index) for index in out]


@st.composite
def piece_lists(draw: st.DrawFn, longest: int = 300) -> Pieces:
    sizes = draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, longest)), max_size=8))
    pieces, at = [], 0
    for skipped, length in sizes:
        pieces.append((at + skipped, at + skipped + length))
        at += skipped + length
    return pieces


def choose(elements: int, density: float, run: int, seed: int) -> Indices:
    """Positions below `elements`, in runs of up to `run` of which half are kept, so that gaps vary."""
    rng = np.random.default_rng(seed)
    mask = np.repeat(rng.random(elements // run + 1) < density, run)[:elements]
    if run > 1:
        mask &= rng.random(elements) < 0.5
    return np.flatnonzero(mask).astype(np.int32)


densities = st.sampled_from([0.0, 0.004, 0.02, 0.1, 0.3, 0.5, 0.8, 0.97, 1.0])
runs = st.sampled_from([1, 1, 3, 20])
seeds = st.integers(0, 10_000)


@quick
@given(piece_lists(), densities, runs, seeds)
@example([], 0.5, 1, 0)
@example([(0, 0), (0, 1), (1, 1), (1, 2)], 1.0, 1, 0)
@example([(3, 4)], 0.0, 1, 0)
def test_the_sections_are_the_smallest_ones_of_the_format(
    pieces: Pieces, density: float, run: int, seed: int
) -> None:
    indices = choose(max((stop for _, stop in pieces), default=0) + 20, density, run, seed)
    inside = [[int(i) - start for i in indices if start <= i < stop] for start, stop in pieces]
    expected = b"".join(
        smallest_section(local, stop - start) for local, (start, stop) in zip(inside, pieces, strict=True)
    )
    assert packed(indices, pieces) == expected


@quick
@given(st.integers(1, 60), st.integers(0, 29), st.integers(1, 12), seeds)
@example(1, 29, 1, 1)
def test_gaps_of_very_different_sizes_get_the_best_encoding(count: int, exponent: int, skew: int, seed: int) -> None:
    exponents = exponent * np.random.default_rng(seed).random(count) ** skew
    positions = np.cumsum(np.exp2(exponents).astype(np.int64)).tolist()
    positions = [position for position in positions if position < 2**31]
    expected = smallest_section(positions, 2**31)
    assert packed(np.array(positions, dtype=np.int32), [(0, 2**31)]) == expected
    assert unpacked(expected, [(0, 2**31)], len(positions)) == positions


@quick
@given(piece_lists(5000), densities, runs, seeds, st.sampled_from([np.float32, np.uint16]))
def test_what_is_packed_comes_back(
    pieces: Pieces, density: float, run: int, seed: int, dtype: type[np.generic]
) -> None:
    indices = choose(max((stop for _, stop in pieces), default=0) + 20, density, run, seed)
    values = np.random.default_rng(seed).integers(0, 60_000, len(indices)).astype(dtype)
    inside = np.array([any(start <= i < stop for start, stop in pieces) for i in indices], dtype=bool)
    out_values = np.empty_like(values)
    out_bytes = np.empty(packed_bound(len(indices), len(pieces)), dtype=np.uint8)
    count, size = pack(indices, values, array_of(pieces), out_values, out_bytes)
    assert count == inside.sum()
    np.testing.assert_array_equal(out_values[:count], values[inside])
    out_indices = np.full(count + 5, -1, dtype=np.int32)
    unpack(received(out_bytes[:size].tobytes(), seed % 9), array_of(pieces), count, out_indices)
    np.testing.assert_array_equal(out_indices[:count], indices[inside])
    assert (out_indices[count:] == -1).all()


@quick
@given(st.lists(st.integers(0, 200), min_size=1, max_size=5), st.integers(1, 4), densities, seeds)
def test_servers_put_their_parts_into_their_own_arenas(
    layers: list[int], servers: int, density: float, seed: int
) -> None:
    elements = sum(layers)
    indices = choose(elements, density, 1, seed)
    values = indices.astype(np.float32)
    arena = np.zeros(elements, dtype=np.float32)
    arena[indices] = values
    offsets = np.concatenate([[0], np.cumsum(layers)])
    for server in range(servers):
        here = [
            (int(offset) + length * server // servers, int(offset) + length * (server + 1) // servers)
            for offset, length in zip(offsets, layers, strict=False)
        ]
        ends = np.cumsum([stop - start for start, stop in here])
        there = [(int(end) - stop + start, int(end)) for end, (start, stop) in zip(ends, here, strict=True)]
        out_values = np.empty_like(values)
        out_bytes = np.empty(packed_bound(len(indices), len(here)), dtype=np.uint8)
        count, size = pack(indices, values, array_of(here), out_values, out_bytes)
        shard = np.zeros(int(ends[-1]), dtype=np.float32)
        shard[unpacked(out_bytes[:size].tobytes(), there, count)] = out_values[:count]
        np.testing.assert_array_equal(shard, np.concatenate([arena[start:stop] for start, stop in here]))


@quick
@given(st.integers(1, 90), densities, seeds, st.sampled_from([BITMAP, VARINT, RICE]), st.integers(0, 30))
def test_an_encoding_need_not_be_the_smallest(
    length: int, density: float, seed: int, encoding: int, parameter: int
) -> None:
    positions = choose(length, density, 1, seed).tolist() or [length - 1]
    message = section(positions, length, encoding, parameter)
    assert unpacked(message, [(7, 7 + length)], len(positions)) == [7 + position for position in positions]


@pytest.mark.parametrize(("rho", "rice_bits"), [(0.1, 4.76), (0.01, 8.11), (0.001, 11.5)])
def test_an_index_takes_the_bits_of_methods_section_1_5(rho: float, rice_bits: float) -> None:
    elements = 2_000_000
    indices = np.sort(np.random.default_rng(5).choice(elements, int(rho * elements), replace=False)).astype(np.int32)
    message = packed(indices, [(0, elements)])
    assert message[0] == RICE
    assert 8 * len(message) / len(indices) == pytest.approx(rice_bits, rel=0.03)


@pytest.mark.parametrize(("gaps", "parameter"), [((8, 8, 24), 4), ((7,), 2), ((0, 0, 12), 1), ((0, 0, 0, 1), 0)])
def test_the_rice_parameter_is_the_best_one(gaps: tuple[int, ...], parameter: int) -> None:
    positions = (np.cumsum(np.tile(gaps, 10) + 1) - 1).tolist()
    message = packed(np.array(positions, dtype=np.int32), [(0, 10_000)])
    assert message == section(positions, 10_000, RICE, parameter)
    assert best_parameter(gaps) == parameter


@pytest.mark.parametrize("gap", [2**bits + more for bits in (7, 14, 21, 28) for more in (-1, 0, 1)])
def test_a_varint_has_the_bytes_it_needs(gap: int) -> None:
    for positions in ([gap], [0, 1, gap + 2], [gap, gap + 1, 2 * gap + 2]):
        expected = smallest_section(positions, 2**31)
        assert packed(np.array(positions, dtype=np.int32), [(0, 2**31)]) == expected


def test_positions_may_be_as_large_as_int32() -> None:
    last = 2**31 - 1
    for positions in ([last], [0, last], [2**30, last - 1, last], [1, 2, 3, last]):
        indices = np.array(positions, dtype=np.int32)
        for pieces in ([(0, 2**31)], [(0, 5), (2**30, 2**31)]):
            inside = [i for i in positions if any(start <= i < stop for start, stop in pieces)]
            assert unpacked(packed(indices, pieces), pieces, len(inside)) == inside
    for encoding, parameter in ((VARINT, 0), (RICE, 30), (RICE, 20)):
        message = section([5, last], 2**31, encoding, parameter)
        assert unpacked(message, [(0, 2**31)], 2) == [5, last]


@quick
@given(piece_lists(), densities, runs, seeds)
def test_room_of_exactly_the_size_suffices(pieces: Pieces, density: float, run: int, seed: int) -> None:
    indices = choose(max((stop for _, stop in pieces), default=0), density, run, seed)
    values = np.ones(len(indices), dtype=np.float32)
    bounds = array_of(pieces)
    count, size = pack(
        indices, values, bounds, np.empty_like(values), np.empty(packed_bound(len(indices), len(pieces)), np.uint8)
    )
    buffer = np.full(size + 2, 0xEE, dtype=np.uint8)
    out = np.full(count + 2, -1, dtype=np.float32)
    assert pack(indices, values, bounds, out[1:-1], buffer[1:-1]) == (count, size)
    assert (buffer[[0, -1]] == 0xEE).all()
    assert (out[[0, -1]] == -1).all()
    for short_values, short_bytes in ((count - 1, size), (count, size - 1)):
        if short_values >= 0 and short_bytes >= 0:
            with pytest.raises(ValueError, match="outputs too small"):
                pack(indices, values, bounds, out[:short_values], buffer[:short_bytes])


# Bad input.


PIECE = [(10, 30)]
GOOD = [0, 3, 17]
BAD_MESSAGES = {
    "nothing": (b"", 3, "too early"),
    "no bitmap": (bytes([BITMAP]), 3, "too early"),
    "part of a bitmap": (section(GOOD, 20, BITMAP)[:-1], 3, "too early"),
    "no count": (bytes([VARINT]), 3, "too early"),
    "part of a count": (bytes([VARINT, 0x83]), 3, "too early"),
    "part of the gaps": (section(GOOD, 20, VARINT)[:-1], 3, "too early"),
    "no parameter": (bytes([RICE, 3]), 3, "too early"),
    "part of a remainder": (bytes([RICE, 1, 30, 1, 2, 3]), 1, "too early"),
    "part of the remainders": (section(GOOD, 20, RICE, 9)[:-2], 3, "too early"),
    "part of the quotients": (section(GOOD, 20, RICE, 0)[:-1], 3, "too early"),
    "endless quotient": (bytes([RICE, 1, 0]) + bytes(500), 1, "too early"),
    "one byte more": (section(GOOD, 20, VARINT) + b"\0", 3, "follow the last"),
    "one section more": (section(GOOD, 20, BITMAP) + bytes([EMPTY]), 3, "follow the last"),
    "another encoding": (bytes([5]) + section(GOOD, 20, BITMAP)[1:], 3, "unknown encoding"),
    "encoding 255": (bytes([255]), 0, "unknown encoding"),
    "varint outside": (section([0, 3, 20], 21, VARINT), 3, "outside its piece"),
    "varint far outside": (bytes([VARINT, 2]) + varint(2**31 - 1) * 2, 2, "outside its piece"),
    "Rice outside": (section([0, 3, 20], 21, RICE, 2), 3, "outside its piece"),
    "huge quotient": (section([5000], 6000, RICE, 0), 1, "outside its piece"),
    "huge quotient and parameter": (bytes([RICE, 1, 30]) + bytes(2_000) + b"\x80", 1, "outside its piece"),
    "too few": (section(GOOD, 20, BITMAP), 4, "as many positions"),
    "too many in a bitmap": (section(GOOD, 20, BITMAP), 2, "as many positions"),
    "too many by varint": (section(GOOD, 20, VARINT), 2, "as many positions"),
    "too many by Rice": (section(GOOD, 20, RICE, 2), 2, "as many positions"),
    "too many when dense": (bytes([DENSE]), 19, "as many positions"),
    "none when empty": (bytes([EMPTY]), 1, "as many positions"),
    "count of zero by varint": (bytes([VARINT, 0]), 0, "as many positions"),
    "count of zero by Rice": (bytes([RICE, 0, 0]), 0, "as many positions"),
    "more than the piece has": (bytes([VARINT, 21]) + bytes(21), 21, "as many positions"),
    "superfluous byte in a count": (bytes([VARINT, 0x83, 0, 0, 2, 13]), 3, "superfluous"),
    "superfluous byte in a gap": (bytes([VARINT, 3, 0x80, 0, 2, 13]), 3, "superfluous"),
    "varint of six bytes": (bytes([VARINT, 1, 0x81, 0x80, 0x80, 0x80, 0x80, 1]), 1, "superfluous"),
    "varint of 2**31": (bytes([VARINT, 1, 0x80, 0x80, 0x80, 0x80, 8]), 1, "not below 2147483648"),
    "parameter 31": (bytes([RICE, 1, 31, 0, 0, 0, 0x80, 0x80]), 1, "parameter is above 30"),
    "bits after a bitmap": (bytes([BITMAP, 9, 0, 0x12]), 3, "fill the last byte"),
    "bits after quotients": (section([0], 20, RICE, 0)[:-1] + b"\x81", 1, "fill the last byte"),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_bad_sections_are_told_apart(name: str) -> None:
    message, count, reason = BAD_MESSAGES[name]
    with pytest.raises(ValueError, match=reason):
        unpacked(message, PIECE, count)
    assert_all_readers_agree(message, PIECE, count)
    assert read_slowly(message, PIECE, count) is None


def test_a_quotient_that_would_overflow_is_refused() -> None:
    """2**33 zeros and parameter 30: the position is 2**63, which 64 bits take for a negative number."""
    message = np.zeros(2**30 + 7, dtype=np.uint8)
    message[[0, 1, 2, 2**30 + 6]] = RICE, 1, 30, 1 << 6
    with pytest.raises(ValueError, match="outside its piece"):
        unpack(message, array_of([(0, 2**31)]), 1, np.empty(1, dtype=np.int32))


BAD_BOUNDS: list[Pieces] = [[(-1, 5)], [(5, 4)], [(0, 5), (4, 9)], [(5, 9), (0, 5)], [(0, 2**31 + 1)]]


@pytest.mark.parametrize("pieces", BAD_BOUNDS)
def test_bounds_ascend(pieces: Pieces) -> None:
    with pytest.raises(ValueError, match="bounds: expected ascending"):
        unpacked(bytes(len(pieces)), pieces, 0)
    with pytest.raises(ValueError, match="bounds: expected ascending"):
        packed(np.zeros(0, dtype=np.int32), pieces)


@pytest.mark.parametrize("positions", [[3, 2], [3, 3], [0, 9, 8, 30]])
def test_indices_ascend(positions: list[int]) -> None:
    with pytest.raises(ValueError, match="indices: expected ascending"):
        packed(np.array(positions, dtype=np.int32), [(0, 20)])


def test_arrays_have_their_dtypes_and_shapes() -> None:
    indices, values, bounds = np.zeros(2, np.int32), np.zeros(2, np.float32), array_of([(0, 4)])
    octets = np.zeros(40, np.uint8)
    good: dict[str, Any] = {
        "indices": indices,
        "values": values,
        "bounds": bounds,
        "out_values": values,
        "out_bytes": octets,
    }
    for name, wrong in [
        ("indices", np.zeros(2, np.int64)),
        ("values", np.zeros(2, np.float64)),
        ("values", np.zeros((2, 1), np.float32)),
        ("bounds", np.zeros((1, 2), np.int32)),
        ("bounds", np.zeros(2, np.int64)),
        ("out_bytes", np.zeros(40, np.int8)),
    ]:
        with pytest.raises(ValueError, match=f"{name}: .* expected"):
            pack(**{**good, name: wrong})
    with pytest.raises(ValueError, match="2 indices and 1 values"):
        pack(indices, values[:1], bounds, values, octets)
    with pytest.raises(ValueError, match=r"bounds: shape \[1, 3\]"):
        unpack(octets, np.zeros((1, 3), np.int64), 0, indices)
    with pytest.raises(ValueError, match="message: "):
        unpack(np.zeros(1, np.int8), bounds, 0, indices)
    with pytest.raises(ValueError, match="out_indices: "):
        unpack(octets, bounds, 0, np.zeros(1, np.int64))
    for count in (-1, 3):
        with pytest.raises(ValueError, match=f"{count} indices into 2 places"):
            unpack(octets, bounds, count, indices)


@cache
def interpreted(function: Any) -> Callable[..., Any]:
    """The Python code of a kernel and of all kernels it calls, which checks what it reads and writes."""
    python = function.py_func
    called = {name: python.__globals__.get(name) for name in python.__code__.co_names}
    kernels = {name: interpreted(value) for name, value in called.items() if hasattr(value, "py_func")}
    return FunctionType(python.__code__, {**python.__globals__, **kernels})


class Guarded(np.ndarray[Any, Any]):
    """An array that takes no negative index for one from its end; NumPy checks the other side."""

    def __getitem__(self, key: Any) -> Any:
        self._check(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check(key)
        super().__setitem__(key, value)

    @staticmethod
    def _check(key: Any) -> None:
        places = (key.start or 0, key.stop or 0) if isinstance(key, slice) else np.ravel(key)
        assert all(place >= 0 for place in places)


def read_interpreted(message: bytes, pieces: Pieces, count: int) -> list[int] | None:
    out = np.zeros(count, dtype=np.int32).view(Guarded)
    # Finding the lowest one of a word multiplies modulo 2**64 on purpose.
    with np.errstate(over="ignore"):
        code = interpreted(read_sections)(received(message).view(Guarded), array_of(pieces).view(Guarded), out)
    return None if code < 0 else [int(index) for index in out.tolist()]


def read_compiled(message: bytes, pieces: Pieces, count: int, begin: int) -> list[int] | None:
    buffer = np.full(count + 40, -7, dtype=np.int32)
    code = read_sections(received(message, begin), array_of(pieces), buffer[20 : 20 + count])
    assert (buffer[:20] == -7).all()
    assert (buffer[20 + count :] == -7).all()
    return None if code < 0 else [int(index) for index in buffer[20 : 20 + count]]


def read_slowly(message: bytes, pieces: Pieces, count: int) -> list[int] | None:
    try:
        return SlowDecoder(message).positions(pieces, count)
    except BrokenError:
        return None


def assert_all_readers_agree(message: bytes, pieces: Pieces, count: int) -> None:
    expected = read_slowly(message, pieces, count)
    assert read_interpreted(message, pieces, count) == expected
    assert read_compiled(message, pieces, count, len(message) % 7) == expected


small_numbers = st.one_of(st.integers(0, 12), st.integers(0, 255))
plausible = st.lists(
    st.one_of(
        st.builds(lambda e, rest: bytes([e, *rest]), st.integers(0, 5), st.lists(small_numbers, max_size=12)),
        st.binary(max_size=5),
    ),
    max_size=4,
).map(b"".join)


@settings(deadline=None, max_examples=250)
@given(plausible, piece_lists(70), st.integers(0, 40))
@example(bytes([BITMAP]), [(0, 0)], 0)
@example(bytes([RICE, 1, 30]) + bytes(300) + b"\x80", [(0, 2**31)], 1)
@example(bytes([RICE, 2, 0]) + bytes(20), [(0, 2**31)], 2)
@example(bytes([VARINT, 2]) + varint(2**31 - 1) * 2, [(0, 2**31)], 2)
def test_no_bytes_whatever_lead_astray(message: bytes, pieces: Pieces, count: int) -> None:
    assert_all_readers_agree(message, pieces, count)


@st.composite
def damaged(draw: st.DrawFn) -> tuple[bytes, Pieces, int]:
    pieces = draw(piece_lists(90).filter(bool))
    parts, count = [], 0
    for start, stop in pieces:
        positions = choose(stop - start, draw(densities), 1, draw(seeds)).tolist()
        encoding = draw(st.sampled_from([BITMAP, VARINT, RICE])) if positions else EMPTY
        parts.append(section(positions, stop - start, encoding, draw(st.integers(0, 8))))
        count += len(positions)
    message = bytearray(b"".join(parts))
    for _ in range(draw(st.integers(0, 3))):
        message[draw(st.integers(0, len(message) - 1))] ^= 1 << draw(st.integers(0, 7))
    if draw(st.booleans()):
        del message[draw(st.integers(0, len(message))) :]
    return bytes(message), pieces, max(0, count + draw(st.sampled_from([0, 0, 0, 1, -1])))


@settings(deadline=None, max_examples=200)
@given(damaged())
def test_damaged_sections_are_read_as_the_slow_decoder_reads_them(case: tuple[bytes, Pieces, int]) -> None:
    assert_all_readers_agree(*case)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.integers(-5, 60), max_size=30), piece_lists(20), st.integers(0, 30), st.integers(0, 60), st.booleans()
)
def test_no_indices_whatever_are_written_outside_the_outputs(
    positions: list[int], pieces: Pieces, room_values: int, room_bytes: int, sort: bool
) -> None:
    indices = np.array(sorted(set(positions)) if sort else positions, dtype=np.int32)
    values = np.arange(len(indices), dtype=np.float32)
    results = []
    for write, guard in ((write_sections, np.ndarray), (interpreted(write_sections), Guarded)):
        out_values = np.zeros(room_values + 2, dtype=np.float32)
        out_bytes = np.zeros(room_bytes + 2, dtype=np.uint8)
        arrays = (indices, values, array_of(pieces), out_values[1:-1], out_bytes[1:-1])
        result = write(*(array.view(guard) for array in arrays))
        assert not out_values[[0, -1]].any()
        assert not out_bytes[[0, -1]].any()
        count, size = result
        results.append((result, out_values[1 : 1 + max(count, 0)].tolist(), out_bytes[1 : 1 + size].tobytes()))
    assert results[0] == results[1]


def test_the_guard_sees_what_lies_outside() -> None:
    guarded = np.zeros(3, dtype=np.int32).view(Guarded)
    for place in (-1, 3):
        with pytest.raises((AssertionError, IndexError)):
            guarded[place] = 1


def _first_calls() -> None:
    """Have the kernels compiled by the smallest arrays."""
    indices = np.zeros(1, dtype=np.int32)
    bounds = np.array([[0, 2]], dtype=np.int64)
    sections = np.empty(packed_bound(1, 1), dtype=np.uint8)
    for dtype in (np.float32, np.uint16):
        values = np.zeros(1, dtype=dtype)
        count, size = pack(indices, values, bounds, np.empty_like(values), sections)
    unpack(sections[:size], bounds, count, indices)


def test_kernels_compile_once_whatever_arrays_they_get() -> None:
    kernels: list[Any] = [read_sections, write_sections]
    _first_calls()
    compiled = [len(kernel.signatures) for kernel in kernels]
    values = np.zeros(3, dtype=np.uint16)
    indices = np.arange(3, dtype=np.int32)
    indices.flags.writeable = False
    pieces = array_of([(0, 2), (2, 9)])
    pieces.flags.writeable = False
    out = np.empty(packed_bound(3, 2), dtype=np.uint8)
    _, size = pack(indices, values, pieces, values.copy(), out)
    unpack(received(out[:size].tobytes(), 3), pieces, 3, np.empty(3, dtype=np.int32))
    assert [len(kernel.signatures) for kernel in kernels] == compiled
