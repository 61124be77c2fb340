"""Sums that kernels carry out around a ring, each rank a thread: their bits, damage of frames, and early ends.

One link, from rank 0 to rank 1, may turn bits or break. Who fails closes its connections, as a process does.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.flipped_bits import Link, relayed
from support.shared_ranks import PeerDiedError, expected_result
from support.value_kinds import random_values, same_bits

from taihu.allreduce.ring.kernel_ring import IS_POSSIBLE, KernelRing
from taihu.allreduce.ring.passes import flat_pass, pass_of
from taihu.allreduce.ring.schedule import Chunks, cut_chunks
from taihu.core.base.errors import DamagedFrameError, FrameError, MemberLostError
from taihu.core.model.layout import LayerSpec, Layout, TensorSpec
from taihu.core.planner.groups import Group
from taihu.kernels.sums import REDUCE_KINDS, ReduceKind, dtype_of

pytestmark = [
    pytest.mark.usefixtures("all_cores"),
    pytest.mark.skipif(not IS_POSSIBLE, reason="this machine's kernels cannot drive a ring"),
]

HEADER_BYTES = 32
# Longer than any of it takes.
JOIN_S = 600.0

Values = NDArray[Any]


@contextmanager
def rings(size: int, first_link: Link | None = None) -> Iterator[list[KernelRing]]:
    """The ranks of a ring; `first_link` is that from rank 0 to rank 1."""
    links = [first_link or socket.socketpair()] + [socket.socketpair() for _ in range(size - 1)]
    with ExitStack() as stack:
        made = [KernelRing(rank, size, links[rank - 1][1], links[rank][0], 0.0) for rank in range(size)]
        for each in made:
            stack.callback(each.close)
        yield made


def outcomes(work: Sequence[Callable[[], None]]) -> list[BaseException | None]:
    """Errors of calls that each run in a thread of their own, None of those that return."""
    ended: list[BaseException | None] = [None] * len(work)

    def run(index: int) -> None:
        try:
            work[index]()
        except BaseException as error:
            ended[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    assert not any(thread.is_alive() for thread in threads)
    return ended


def raise_first(ended: Sequence[BaseException | None]) -> None:
    for error in ended:
        if error is not None:
            raise error


def never() -> None:
    return None


def sum_all(ring: KernelRing, calls: Sequence[Values], kind: ReduceKind, *, mean: bool = False) -> None:
    """One rank's sums, one after the other; it closes its connections behind the last one, or when one fails."""
    try:
        for values in calls:
            ring.allreduce(values, kind, never, mean=mean)
    finally:
        ring.close()


class Ranks:
    """The values of all ranks in some sums, with room at both ends that belongs to none of them.

    Attributes:
        values: of each rank and sum, shape (n,).
    """

    def __init__(self, size: int, counts: Sequence[int], kind: ReduceKind, seed: int, room: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.kind = kind
        self._memory = [[random_values(rng, count + 2 * room, kind) for count in counts] for _ in range(size)]
        self._before = [[each.copy() for each in calls] for calls in self._memory]
        self._room = room
        self.values = [[self._inner(each) for each in calls] for calls in self._memory]

    def _inner(self, memory: Values) -> Values:
        return memory[self._room : len(memory) - self._room]

    def run(self, made: Sequence[KernelRing], *, mean: bool = False) -> list[BaseException | None]:
        """All sums on all ranks; returns errors."""
        work = [
            partial(sum_all, ring, calls, self.kind, mean=mean) for ring, calls in zip(made, self.values, strict=True)
        ]
        return outcomes(work)

    def check(self, ranks: Sequence[int] | None = None, *, mean: bool = False) -> None:
        """These ranks, or all, hold the sums that NumPy makes in the order of a ring; the room is what it was."""
        for index in range(len(self.values[0])):
            given_values = [self._inner(calls[index]) for calls in self._before]
            sums = expected_result(given_values, (0, len(given_values[0]), self.kind, mean))
            for rank in range(len(self.values)) if ranks is None else ranks:
                whole = self._before[rank][index].copy()
                self._inner(whole)[:] = sums[rank]
                assert same_bits(self._memory[rank][index], whole)


kinds = st.sampled_from(REDUCE_KINDS)
sizes = st.integers(2, 5)
counts = st.one_of(st.integers(0, 9), st.integers(0, 3000), st.integers(0, 60_000))


@settings(max_examples=150)
@given(sizes, st.lists(counts, min_size=1, max_size=3), kinds, st.booleans(), st.integers(0, 9), st.integers(0, 99))
def test_all_ranks_hold_the_sums_in_the_order_of_a_ring(  # noqa: PLR0917 - what is drawn
    size: int, elements: list[int], kind: ReduceKind, mean: bool, room: int, seed: int
) -> None:
    """Each closes its connections behind the last sum, whether others are in it yet or not."""
    ranks = Ranks(size, elements, kind, seed, room)
    with rings(size) as made:
        raise_first(ranks.run(made, mean=mean))
        ranks.check(mean=mean)
        moved = 2 * (size - 1) * sum(elements) * dtype_of(kind).itemsize
        assert sum(each.sent_bytes for each in made) == sum(each.received_bytes for each in made) == moved


@pytest.mark.parametrize(("kind", "count"), [("fp32", 2_500_000), ("fp16", 1_000_001)])
def test_frames_of_the_largest_size_bring_the_same_sums(kind: ReduceKind, count: int) -> None:
    """Connections hold less than one of them."""
    ranks = Ranks(3, [count], kind, 1)
    with rings(3) as made:
        raise_first(ranks.run(made, mean=True))
    ranks.check(mean=True)


def test_rings_over_tcp_bring_the_same_sums() -> None:
    """A connection of TCP that is closed with something unread takes along what the other side has not read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        links = [(socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(3)]
    made = [KernelRing(rank, 3, links[rank - 1][1], links[rank][0], 0.0) for rank in range(3)]
    ranks = Ranks(3, [100_000, 0, 7, 1], "fp32", 4)
    raise_first(ranks.run(made))
    ranks.check()


SPECIAL: dict[ReduceKind, Values] = {
    "fp32": np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-39, 1.5, -2.0], dtype=np.float32),
    "fp64": np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -1e-310, 1.5, -2.0], dtype=np.float64),
    "fp16": np.array([0x7E00, 0x7C00, 0xFC00, 0, 0x8000, 1, 0x83FF, 0x3E00, 0xC000], dtype=np.uint16),
    "bf16": np.array([0x7FC0, 0x7F80, 0xFF80, 0, 0x8000, 1, 0x807F, 0x3FC0, 0xC000], dtype=np.uint16),
}
INFINITY_CODES: dict[ReduceKind, int] = {"fp16": 0x7C00, "bf16": 0x7F80}


def is_nan(values: Values, kind: ReduceKind) -> NDArray[np.bool_]:
    found: NDArray[np.bool_]
    found = (values & 0x7FFF) > INFINITY_CODES[kind] if kind in INFINITY_CODES else np.isnan(values)
    return found


@settings(max_examples=60)
@given(sizes, st.integers(0, 300), kinds, st.booleans(), st.integers(0, 99))
def test_infinities_and_what_is_no_number_are_summed_as_others(
    size: int, count: int, kind: ReduceKind, mean: bool, seed: int
) -> None:
    """All ranks hold the same bits then, too; which of several NaNs a sum is depends on the processor."""
    rng = np.random.default_rng(seed)
    before = [rng.choice(SPECIAL[kind], count) for _ in range(size)]
    values = [each.copy() for each in before]
    with rings(size) as made:
        work = [partial(sum_all, ring, [own], kind, mean=mean) for ring, own in zip(made, values, strict=True)]
        raise_first(outcomes(work))
    with np.errstate(invalid="ignore"):
        expected = expected_result(before, (0, count, kind, mean))[0]
    assert all(same_bits(each, values[0]) for each in values)
    nans = is_nan(expected, kind)
    assert np.array_equal(is_nan(values[0], kind), nans)
    assert same_bits(values[0][~nans], expected[~nans])


def chunks_of_layers(layer_sizes: Sequence[int], first: int, last: int, size: int, itemsize: int) -> Chunks:
    layers = (LayerSpec(f"layer{i}", (TensorSpec("weight", (each,)),)) for i, each in enumerate(layer_sizes))
    return cut_chunks(Layout(tuple(layers)), Group(first, last), size, itemsize)


@settings(max_examples=80)
@given(sizes, st.lists(counts, min_size=1, max_size=6), kinds, st.booleans(), st.data())
def test_groups_of_layers_are_summed_layer_by_layer_and_nothing_else_is(
    size: int, layer_sizes: list[int], kind: ReduceKind, mean: bool, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(layer_sizes) - 1))
    last = data.draw(st.integers(first, len(layer_sizes) - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    before = [random_values(rng, sum(layer_sizes), kind) for _ in range(size)]
    values = [each.copy() for each in before]
    itemsize = dtype_of(kind).itemsize
    chunks = chunks_of_layers(layer_sizes, first, last, size, itemsize)
    with rings(size) as made:
        passes = [pass_of(rank, chunks, itemsize) for rank in range(size)]
        work = [partial(made[rank].run, passes[rank], values[rank], kind, never, mean=mean) for rank in range(size)]
        raise_first(outcomes(work))
    bounds = np.cumsum([0, *layer_sizes])
    for layer in range(first, last + 1):
        before = expected_result(before, (int(bounds[layer]), int(bounds[layer + 1]), kind, mean))
    assert all(same_bits(*pair) for pair in zip(values, before, strict=True))


def frame_starts(size: int, elements: Sequence[int], kind: ReduceKind) -> list[tuple[int, int]]:
    """The beginnings of the frames that rank 0 sends, in bytes of all that it sends, and their sizes with headers."""
    itemsize = dtype_of(kind).itemsize
    passes = [flat_pass(0, size, count, itemsize) for count in elements]
    lengths = [HEADER_BYTES + each for steps in passes for each in steps.frames[: steps.sends, -1].tolist()]
    return [(sum(lengths[:index]), length) for index, length in enumerate(lengths)]


# Chunks of many frames, of few, and of none.
damaged_counts = st.lists(
    st.one_of(st.just(60_000), st.integers(1, 60_000), st.integers(1, 9)), min_size=1, max_size=2
)


@settings(max_examples=200)
@given(st.integers(2, 4), damaged_counts, kinds, st.booleans(), st.data())
def test_a_frame_that_comes_damaged_ends_the_sum_and_names_the_link(
    size: int, elements: list[int], kind: ReduceKind, mean: bool, data: st.DataObject
) -> None:
    frame, length = data.draw(st.sampled_from(frame_starts(size, elements, kind)))
    in_frame = data.draw(st.one_of(st.integers(0, 8 * HEADER_BYTES - 1), st.integers(0, 8 * length - 1)))
    ranks = Ranks(size, elements, kind, in_frame)
    with relayed([8 * frame + in_frame]) as link, rings(size, link) as made:
        ended = ranks.run(made, mean=mean)
    assert isinstance(ended[1], DamagedFrameError)
    assert str(ended[1]).startswith("the link from worker 0 to worker 1: frame ")
    # The others may have had all by then.
    assert all(error is None or isinstance(error, MemberLostError) for error in [ended[0], *ended[2:]])


# The checksum finds any three turned bits of a frame.
turned_bits = st.lists(st.integers(0, 10**7), max_size=3)


@settings(max_examples=150)
@given(st.integers(2, 3), damaged_counts, turned_bits, st.integers(0, 99))
def test_whatever_comes_damaged_no_rank_ends_with_other_bits(
    size: int, elements: list[int], turned: list[int], seed: int
) -> None:
    end = sum(frame_starts(size, elements, "fp32")[-1])
    ranks = Ranks(size, elements, "fp32", seed)
    with relayed([bit % (8 * end) for bit in turned]) as link, rings(size, link) as made:
        ended = ranks.run(made)
    assert all(error is None or isinstance(error, FrameError | MemberLostError) for error in ended)
    ranks.check([rank for rank, error in enumerate(ended) if error is None])


@settings(max_examples=40)
@given(st.integers(2, 4), st.lists(st.integers(1, 60_000), min_size=1, max_size=2), st.data())
def test_when_a_link_breaks_in_a_sum_nobody_waits_for_ever(
    size: int, elements: list[int], data: st.DataObject
) -> None:
    after = data.draw(st.integers(0, sum(frame_starts(size, elements, "fp32")[-1]) - 1))
    ranks = Ranks(size, elements, "fp32", after)
    with relayed(breaks_after=after) as link, rings(size, link) as made:
        ended = ranks.run(made)
    # The others may have had all by then, also who has sent it.
    assert isinstance(ended[1], MemberLostError)
    assert all(error is None or isinstance(error, MemberLostError) for error in [ended[0], *ended[2:]])
    assert str(ended[1]) == "worker 0 was lost: its connection ended"


@contextmanager
def alone(reason_s: float = 0.0) -> Iterator[tuple[KernelRing, socket.socket, socket.socket]]:
    """Rank 1 of three, and the other ends of its connections to rank 0 and to rank 2."""
    (far_left, left), (right, far_right) = socket.socketpair(), socket.socketpair()
    with far_left, far_right, closing(KernelRing(1, 3, left, right, reason_s)) as ring:
        yield ring, far_left, far_right


def ones(count: int = 6) -> Values:
    return np.ones(count, dtype=np.float32)


@pytest.mark.parametrize(("leaves", "name"), [(0, "worker 0"), (1, "worker 2")])
def test_the_neighbour_whose_connection_ends_is_named(leaves: int, name: str) -> None:
    with alone() as (ring, *ends):
        ends[leaves].close()
        with pytest.raises(MemberLostError, match=f"^{name} was lost: its connection ended$"):
            ring.allreduce(ones(), "fp32", never, mean=False)


def test_the_neighbour_that_sends_what_does_not_belong_there_is_named() -> None:
    """A header that is whole but empty."""
    with alone() as (ring, left, _):
        left.sendall(bytes(28) + crc32c(bytes(28)).to_bytes(4, "little"))
        with pytest.raises(FrameError, match=r"^worker 0 sent what does not belong to sum 1: "):
            ring.allreduce(ones(), "fp32", lambda: AssertionError("it waits"), mean=False)


@pytest.mark.parametrize("leaves", [0, 1])
def test_an_error_that_says_more_is_raised_in_place_of_a_lost_neighbour_if_it_is_there_soon(leaves: int) -> None:
    error = PeerDiedError("worker 2 was killed")
    answers = iter([None, None, error])
    with alone(reason_s=JOIN_S) as (ring, *ends):
        ends[leaves].close()
        with pytest.raises(PeerDiedError) as raised:
            ring.allreduce(ones(), "fp32", lambda: next(answers), mean=False)
        assert raised.value is error


def test_who_waits_ends_with_the_error_that_there_is() -> None:
    answers = iter([None, None, PeerDiedError("worker 0 was killed")])
    with alone() as (ring, *_), pytest.raises(PeerDiedError, match="worker 0 was killed"):
        ring.allreduce(ones(), "fp32", lambda: next(answers), mean=False)


def test_who_begins_the_next_sum_early_waits_for_the_others() -> None:
    """Rank 1 begins it when rank 0 is known to wait."""
    ranks = Ranks(2, [50, 70_000], "fp32", 3)
    waits = threading.Event()
    with rings(2) as made:

        def early() -> None:
            made[0].allreduce(ranks.values[0][0], "fp32", never, mean=False)
            made[0].allreduce(ranks.values[0][1], "fp32", waits.set, mean=False)

        def late() -> None:
            made[1].allreduce(ranks.values[1][0], "fp32", never, mean=False)
            assert waits.wait(JOIN_S)
            made[1].allreduce(ranks.values[1][1], "fp32", never, mean=False)

        raise_first(outcomes([early, late]))
    ranks.check()


def run_calls(calls: Sequence[Sequence[Values]]) -> list[BaseException | None]:
    """Sums of ranks that do not agree: who fails leaves, and all hear of that, as those of one job do.

    One that has all that it expects goes on to other things, and leaves nobody.
    """
    failed = threading.Event()

    def is_failed() -> BaseException | None:
        return PeerDiedError("another rank failed") if failed.is_set() else None

    with rings(len(calls)) as made:

        def run(rank: int) -> None:
            try:
                for values in calls[rank]:
                    made[rank].allreduce(values, "fp32", is_failed, mean=False)
            except Exception:
                made[rank].close()
                failed.set()
                raise

        return outcomes([partial(run, rank) for rank in range(len(calls))])


def check_disagreement(ended: Sequence[BaseException | None]) -> None:
    """The one that sees it says so, and the others hear of that or lose a neighbour."""
    assert all(error is None or type(error) in {FrameError, MemberLostError, PeerDiedError} for error in ended)
    told = [str(error) for error in ended if isinstance(error, FrameError)]
    assert told
    assert all(
        "expected the same operations of values of the same size and type on all ranks" in each for each in told
    )


few_or_many = st.one_of(st.integers(1, 12), st.integers(1, 60_000))


@settings(max_examples=60)
@given(st.integers(2, 4), few_or_many, few_or_many, st.data())
def test_ranks_that_sum_different_numbers_of_values_are_refused(
    size: int, count: int, other: int, data: st.DataObject
) -> None:
    other = count + 1 if other == count else other
    odd = data.draw(st.integers(0, size - 1))
    check_disagreement(run_calls([[ones(other if rank == odd else count)] for rank in range(size)]))


@settings(max_examples=30)
@given(st.integers(2, 4), few_or_many, few_or_many, st.data())
def test_ranks_that_sum_in_another_order_are_refused(size: int, count: int, more: int, data: st.DataObject) -> None:
    calls = [[ones(count), ones(count + more)] for _ in range(size)]
    calls[data.draw(st.integers(0, size - 1))].reverse()
    check_disagreement(run_calls(calls))


@pytest.mark.parametrize("counts", [(3, 3, 2), (3, 3, 3, 2), (2, 2, 3)])
def test_nobody_takes_or_awaits_the_rest_of_another_sum(counts: tuple[int, ...]) -> None:
    """A rank whose own frames are all alike in both sums would end well, or wait for ever."""
    ended = run_calls([[ones(count)] for count in counts])
    check_disagreement(ended)
    assert None not in ended


CODES = np.full(4, 0x3C00, dtype=np.uint16)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((np.ones(4, dtype=np.float32), "fp32", False), (np.ones(2, dtype=np.float64), "fp64", False)),
        ((CODES.copy(), "fp16", False), (CODES.copy(), "bf16", False)),
        ((np.ones(4, dtype=np.float32), "fp32", True), (np.ones(4, dtype=np.float32), "fp32", False)),
    ],
)
def test_ranks_that_sum_values_of_different_kinds_are_refused(
    first: tuple[Values, ReduceKind, bool], second: tuple[Values, ReduceKind, bool]
) -> None:
    def call(ring: KernelRing, values: Values, kind: ReduceKind, mean: bool) -> None:
        sum_all(ring, [values], kind, mean=mean)

    with rings(2) as made:
        ended = outcomes([partial(call, ring, *each) for ring, each in zip(made, (first, second), strict=True)])
    check_disagreement(ended)
    assert None not in ended


def test_ranks_in_different_sums_of_as_many_values_are_refused() -> None:
    """Frames say of which sum they are. Of no values nothing is sent, by which that would be seen at once."""
    check_disagreement(run_calls([[ones(0), ones()], [ones()]]))


def nothing_to_read(connection: socket.socket) -> bool:
    try:
        connection.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.ones(12, dtype=np.float32)[::2], "fp32"),
        (np.ones(12, dtype=np.float32)[::-1], "fp32"),
        (np.ones((3, 4), dtype=np.float32), "fp32"),
        (np.ones((), dtype=np.float32), "fp32"),
        (np.ones(12, dtype=np.float64), "fp32"),
        (np.ones(12, dtype=np.float32), "fp64"),
        (np.ones(12, dtype=">f4"), "fp32"),
        (np.ones(12, dtype=np.float16), "fp16"),
        (np.ones(12, dtype=np.int16), "bf16"),
        (np.ones(12, dtype=np.int8), "int8"),
        (np.frombuffer(bytes(48), dtype=np.float32), "fp32"),
    ],
)
def test_values_of_another_form_are_refused_and_nothing_is_sent(values: Values, kind: ReduceKind) -> None:
    before = values.copy()
    with alone() as (ring, *ends):
        with pytest.raises(ValueError, match="expected"):
            ring.allreduce(values, kind, lambda: AssertionError("it waits"), mean=False)
        assert all(map(nothing_to_read, ends))
    assert np.array_equal(values, before)


def test_a_refused_call_does_not_count_as_a_sum() -> None:
    ranks = Ranks(2, [100], "fp32", 0)
    with rings(2) as made:
        with pytest.raises(ValueError, match="shape"):
            made[0].allreduce(ones().reshape(2, 3), "fp32", never, mean=False)
        raise_first(ranks.run(made))
    ranks.check()
