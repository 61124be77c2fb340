"""CRC-32C by carry-less products of 512 bits, for kernels of processors that have AVX-512 and VPCLMULQDQ.

Four vectors of four lanes run over the data. Each is multiplied by what the powers of x that lie between it and the
next data leave of them, modulo the polynomial, and added to that: the remainder stays what it was. At the end the
lanes are folded into one, of which the processor's own instruction makes the checksum. Gopal et al., "Fast CRC
Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009), section 3, of reflected bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

HAS_FOLDING: Final = all(binding.get_host_cpu_features().get(each, False) for each in ("avx512f", "vpclmulqdq"))
"""Whether this machine's kernels can fold; elsewhere `folded` may not be compiled."""
BLOCK_WORDS: Final = 32
"""Words of 64 bits that are folded at a time."""

# Castagnoli's, its bits reflected.
_POLYNOMIAL: Final = 0x82F63B78
_VECTORS: Final = 4
_VECTOR_BITS: Final = 512
_LANE_BITS: Final = 128
_LOWER, _UPPER = 0x00, 0x11

_Word: Final = ir.IntType(64)
_Index: Final = ir.IntType(32)
_Imm: Final = ir.IntType(8)
_Vector: Final = ir.VectorType(_Word, _VECTOR_BITS // 64)


def times_x(remainder: int, exponent: int) -> int:
    """A remainder, its bits reflected, times x to the `exponent`: what so many bits of zeros make of a checksum."""
    for _ in range(exponent):
        remainder = remainder >> 1 ^ (_POLYNOMIAL if remainder & 1 else 0)
    return remainder


def _power(exponent: int) -> int:
    """The remainder of x to the `exponent`, shifted by one as products of reflected bits are."""
    return times_x(1 << 31, exponent) << 1


def _factors(distances: Sequence[int]) -> Any:
    """The factors of each lane's two halves over so many bits; of 0 bits none, where a lane is not folded."""
    pairs = [(_power(bits + 32), _power(bits - 32)) if bits else (0, 0) for bits in distances]
    return ir.Constant(_Vector, [factor for pair in pairs for factor in pair])


class _Folding:
    """The machine code of one call, which `builder` writes."""

    def __init__(self, builder: Any) -> None:
        untyped: Any = cgutils
        form = ir.FunctionType(_Vector, [_Vector, _Vector, _Imm])
        self._product = untyped.get_or_insert_function(builder.module, form, "llvm.x86.pclmulqdq.512")
        form = ir.FunctionType(_Word, [_Word, _Word])
        self._add_word = untyped.get_or_insert_function(builder.module, form, "llvm.x86.sse42.crc32.64.64")
        self._builder = builder

    def load(self, address: Any) -> list[Any]:
        """The vectors of a block."""
        build, step = self._builder, _VECTOR_BITS // 8
        places = [build.add(address, _Word(step * each)) for each in range(_VECTORS)]
        return [build.load(build.inttoptr(place, _Vector.as_pointer()), align=1) for place in places]

    def fold(self, vector: Any, distances: Sequence[int]) -> Any:
        """The remainders of a vector so many bits later, lane by lane."""
        factors = _factors(distances)
        halves = [self._builder.call(self._product, [vector, factors, _Imm(half)]) for half in (_LOWER, _UPPER)]
        return self._builder.xor(*halves)

    def all_blocks(self, address: Any, blocks: Any, crc: Any) -> list[Any]:
        """The vectors that all blocks, of which there is one at least, are folded into."""
        build = self._builder
        start = self.load(address)
        seen = build.insert_element(ir.Constant(_Vector, [0] * _Vector.count), crc, _Index(0))
        start[0] = build.xor(start[0], seen)
        before = build.block
        head, body, end = (build.append_basic_block(f"fold.{name}") for name in ("head", "body", "end"))
        build.branch(head)
        build.position_at_end(head)
        number, vectors = build.phi(_Word), [build.phi(_Vector) for _ in start]
        build.cbranch(build.icmp_signed("<", number, blocks), body, end)
        build.position_at_end(body)
        more = self.load(build.add(address, build.mul(number, _Word(8 * BLOCK_WORDS))))
        over = [_VECTORS * _VECTOR_BITS] * (_VECTOR_BITS // _LANE_BITS)
        folded = [build.xor(self.fold(old, over), new) for old, new in zip(vectors, more, strict=True)]
        number.add_incoming(_Word(1), before)
        number.add_incoming(build.add(number, _Word(1)), body)
        for phi, first, later in zip(vectors, start, folded, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, body)
        build.branch(head)
        build.position_at_end(end)
        return vectors

    def checksum(self, vectors: Sequence[Any]) -> Any:
        """The checksum of what vectors leave."""
        build, lanes = self._builder, _VECTOR_BITS // _LANE_BITS
        last = vectors[-1]
        for behind, vector in enumerate(reversed(vectors[:-1]), 1):
            last = build.xor(last, self.fold(vector, [behind * _VECTOR_BITS] * lanes))
        over = self.fold(last, [_LANE_BITS * behind for behind in reversed(range(lanes))])
        crc = _Word(0)
        for half in range(2):
            total = build.extract_element(last, _Index(2 * (lanes - 1) + half))
            for lane in range(lanes - 1):
                total = build.xor(total, build.extract_element(over, _Index(2 * lane + half)))
            crc = build.call(self._add_word, [crc, total])
        return crc


def _folded(typing_context: Any, address: Any, blocks: Any, crc: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        folding = _Folding(builder)
        return folding.checksum(folding.all_blocks(*arguments))

    return types.uint64(types.int64, types.int64, types.uint64), generate


folded = cast(Callable[[int, int, Any], Any], intrinsic(_folded))
"""The checksum, not complemented, of one or more blocks at an address behind what has the checksum `crc`, so, too."""
