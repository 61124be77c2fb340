"""Sparse allreduce against sums of dictionaries, in random orders of arrival, with malformed and missing messages."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sparse_network import ALGORITHMS, Network, make_exchange

from taihu.allreduce.sparse.exchange import Message, RankOrderSum, Slice
from taihu.allreduce.sparse.tree import GtopkTree
from taihu.core.base.errors import ConfigError, ExchangeError, FrameError

quick = settings(deadline=None, max_examples=60)
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


@dataclass(frozen=True)
class World:
    """Entries that the ranks bring, and the number that gtopk keeps."""

    elements: int
    slices: tuple[Slice, ...]
    k: int

    @property
    def size(self) -> int:
        return len(self.slices)

    def network(self, algorithm: str) -> Network:
        return Network(
            [
                make_exchange(algorithm, own, rank=rank, size=self.size, elements=self.elements, k=self.k)
                for rank, own in enumerate(self.slices)
            ]
        )


def entries(pairs: dict[int, float]) -> Slice:
    indices = sorted(pairs)
    return Slice(np.array(indices, dtype=np.int32), np.array([pairs[i] for i in indices], dtype=np.float32))


def random_slice(rng: np.random.Generator, elements: int, *, integers: bool) -> Slice:
    """Any number of entries; values whose sums depend on the order, or integers with exact sums and many equals."""
    count = rng.choice([0, 1, int(rng.integers(0, elements + 1)), elements // 50, elements])
    indices = np.sort(rng.choice(elements, min(int(count), elements), replace=False)).astype(np.int32)
    if integers:
        return Slice(indices, rng.integers(-9, 10, len(indices)).astype(np.float32))
    values = rng.standard_normal(len(indices)) * 10.0 ** rng.integers(-6, 6, len(indices))
    return Slice(indices, values.astype(np.float32))


@st.composite
def worlds(draw: st.DrawFn, *, integers: bool = False) -> World:
    elements = draw(st.one_of(st.integers(1, 12), st.integers(1, 3000)))
    size = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    slices = tuple(random_slice(rng, elements, integers=integers) for _ in range(size))
    return World(elements, slices, draw(st.one_of(st.integers(1, 8), st.integers(1, elements))))


def run(world: World, algorithm: str, seed: int) -> Network:
    """All messages delivered, in an order that `seed` decides."""
    network = world.network(algorithm)
    network.run(random.Random(seed).randrange, ranks=range(world.size))
    for exchange in network.exchanges:
        assert exchange.done
        assert exchange.awaited == ()
    return network


def bits(part: Slice) -> tuple[bytes, bytes]:
    assert part.indices.dtype == np.int32
    assert part.values.dtype == np.float32
    return part.indices.tobytes(), part.values.tobytes()


def dense(part: Slice, elements: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.zeros(elements)
    array[part.indices] = part.values
    return array


def as_dictionary(part: Slice) -> dict[int, np.float32]:
    return dict(zip(part.indices.tolist(), part.values, strict=True))


def added(left: dict[int, np.float32], right: dict[int, np.float32]) -> dict[int, np.float32]:
    return {i: left[i] + right[i] if i in left and i in right else left.get(i, right.get(i)) for i in left | right}  # type: ignore[misc]


def rank_order_sum(slices: Sequence[Slice]) -> Slice:
    total: dict[int, np.float32] = {}
    for part in slices:
        total = added(total, as_dictionary(part))
    return entries({i: float(value) for i, value in total.items()})


def tree_sum(slices: Sequence[Slice], k: int) -> Slice:
    """The binomial tree from the top: the ranks of a subtree are halved, and the left half is a power of two."""

    def largest(candidates: dict[int, np.float32]) -> dict[int, np.float32]:
        order = sorted(candidates, key=lambda i: (-abs(float(candidates[i])), i))
        return {i: candidates[i] for i in order[:k]}

    def subtree(part: Sequence[Slice]) -> dict[int, np.float32]:
        if len(part) == 1:
            return largest(as_dictionary(part[0]))
        half = 1 << ((len(part) - 1).bit_length() - 1)
        return largest(added(subtree(part[:half]), subtree(part[half:])))

    return entries({i: float(value) for i, value in subtree(slices).items()})


@pytest.mark.parametrize("algorithm", ["allgather", "reduce_scatter"])
@quick
@given(worlds(), st.integers())
def test_exact_algorithms_sum_in_rank_order_bit_for_bit(algorithm: str, world: World, seed: int) -> None:
    expected = bits(rank_order_sum(world.slices))
    for exchange in run(world, algorithm, seed).exchanges:
        assert bits(exchange.result()) == expected
        assert bits(exchange.returned()) == bits(Slice.empty())


@algorithms
@quick
@given(worlds(), st.integers(), st.integers())
def test_any_order_of_arrival_has_the_same_outcome(algorithm: str, world: World, first: int, second: int) -> None:
    networks = run(world, algorithm, first), run(world, algorithm, second)
    for one, other in zip(networks[0].exchanges, networks[1].exchanges, strict=True):
        assert bits(one.result()) == bits(other.result()) == bits(networks[0].exchanges[0].result())
        assert bits(one.returned()) == bits(other.returned())


@quick
@given(worlds(), st.integers())
def test_gtopk_is_the_recursive_tree(world: World, seed: int) -> None:
    expected = bits(tree_sum(world.slices, world.k))
    for exchange in run(world, "gtopk", seed).exchanges:
        assert bits(exchange.result()) == expected


@algorithms
@quick
@given(worlds(integers=True), st.integers())
def test_nothing_is_lost(algorithm: str, world: World, seed: int) -> None:
    exchanges = run(world, algorithm, seed).exchanges
    total = dense(exchanges[0].result(), world.elements)
    for exchange in exchanges:
        exchange.returned().check("returned", 0, world.elements)
        total += dense(exchange.returned(), world.elements)
    expected = np.sum([dense(part, world.elements) for part in world.slices], axis=0)
    np.testing.assert_array_equal(total, expected)


def test_gtopk_rejects_and_the_paper_would_lose() -> None:
    """Index 7 survives from ranks 0 and 1, and is rejected in the merge of ranks 2 and 3."""
    slices = (entries({7: 5.0}), entries({7: 4.0}), entries({7: 1.0}), entries({1: 3.0}))
    exchanges = run(World(8, slices, k=1), "gtopk", 0).exchanges
    assert as_dictionary(exchanges[0].result()) == {7: 9.0}
    assert [as_dictionary(e.returned()) for e in exchanges] == [{1: 3.0}, {}, {7: 1.0}, {}]
    by_the_paper = [{i: v for i, v in as_dictionary(own).items() if i != 7} for own in slices]
    assert by_the_paper == [{}, {}, {}, {1: 3.0}]


def test_an_index_that_one_rank_rejects_twice_is_returned_once() -> None:
    slices = (entries({0: 8.0, 3: 1.0}), entries({3: 2.0}), entries({3: 2.0}))
    exchanges = run(World(4, slices, k=1), "gtopk", 3).exchanges
    assert as_dictionary(exchanges[0].returned()) == {3: 5.0}


@algorithms
@quick
@given(worlds(), st.integers())
def test_every_rank_sends_and_receives_one_message_a_round(algorithm: str, world: World, seed: int) -> None:
    sent = run(world, algorithm, seed).sent
    for side in ([(m.round, m.sender) for m in sent], [(m.round, m.to) for m in sent]):
        assert not side or max(Counter(side).values()) == 1
    levels = (world.size - 1).bit_length()
    per_rank = {"allgather": world.size - 1, "reduce_scatter": 2 * (world.size - 1)}
    assert {m.round for m in sent} == set(range(per_rank.get(algorithm, 2 * levels)))
    assert len(sent) == (world.size * per_rank[algorithm] if algorithm in per_rank else 2 * (world.size - 1))


def test_a_slice_is_sent_from_one_memory() -> None:
    """A message to all is encoded once."""
    network = World(9, (entries({1: 1.0}), entries({2: 1.0}), entries({})), k=1).network("allgather")
    first, second = network.begin(0)
    assert first.indices is second.indices
    assert first.values is second.values


def test_the_memory_of_sums_serves_ranges_of_any_size() -> None:
    summation = RankOrderSum()
    for elements in (3, 200, 70, 200):
        parts = [entries({0: 1.0, elements - 1: 2.0}), entries({elements - 1: 3.0})]
        assert as_dictionary(summation(parts, 0, elements)) == {0: 1.0, elements - 1: 5.0}


Defect = Callable[[Message], Message]
FOREIGN: dict[str, Defect] = {
    "another receiver": lambda m: replace(m, to=m.to + 1),
    "an unknown rank": lambda m: replace(m, sender=99),
    "a negative rank": lambda m: replace(m, sender=-1),
    "the receiver itself": lambda m: replace(m, sender=m.to),
    "a later round": lambda m: replace(m, round=m.round + 1),
    "a negative round": lambda m: replace(m, round=-1),
    "another start": lambda m: replace(m, start=m.start - 1),
    "another stop": lambda m: replace(m, stop=m.stop + 1),
}
MALFORMED: dict[str, Defect] = {
    "indices in int64": lambda m: replace(m, indices=m.indices.astype(np.int64)),
    "values in fp64": lambda m: replace(m, values=m.values.astype(np.float64)),
    "a value too many": lambda m: replace(m, values=np.append(m.values, np.float32(1))),
    "indices of two dimensions": lambda m: replace(m, indices=m.indices[None], values=m.values[None]),
    "an index below the range": lambda m: with_indices(m, m.start - 1),
    "an index behind the range": lambda m: with_indices(m, m.stop),
    "an index twice": lambda m: with_indices(m, m.start, m.start),
    "descending indices": lambda m: with_indices(m, m.start + 1, m.start),
    "strided indices": lambda m: replace(with_indices(m, 0, 0), indices=np.arange(4, dtype=np.int32)[::2]),
}
DEFECTS = FOREIGN | MALFORMED


def with_indices(message: Message, *indices: int) -> Message:
    return replace(message, indices=np.array(indices, dtype=np.int32), values=np.ones(len(indices), dtype=np.float32))


@algorithms
@settings(deadline=None, max_examples=40)
@given(worlds(), st.integers(), st.data())
def test_defects_are_refused_and_change_nothing(algorithm: str, world: World, seed: int, data: st.DataObject) -> None:
    expected = [(bits(e.result()), bits(e.returned())) for e in run(world, algorithm, seed).exchanges]
    network = world.network(algorithm)
    for rank in range(world.size):
        network.begin(rank)
    shuffle = random.Random(seed)
    while network.pairs():
        pair = shuffle.choice(network.pairs())
        message, receiver = network.oldest(*pair), network.exchanges[pair[1]]
        defect = data.draw(st.sampled_from(sorted(DEFECTS)))
        with pytest.raises(FrameError, match="sparse message from rank"):
            receiver.arrive(DEFECTS[defect](message))
        network.deliver(*pair)
        with pytest.raises(FrameError, match="sparse message from rank"):
            receiver.arrive(message)
    assert [(bits(e.result()), bits(e.returned())) for e in network.exchanges] == expected


@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_every_defect_names_the_message(defect: str) -> None:
    network = World(8, (entries({1: 1.0}), entries({2: 1.0})), k=4).network("allgather")
    message = network.begin(0)[0]
    with pytest.raises(FrameError, match=r"^sparse message from rank .*(expected|arrived at rank 1)"):
        network.exchanges[1].arrive(DEFECTS[defect](message))


def test_gtopk_refuses_more_than_k_entries() -> None:
    tree = GtopkTree(entries({}), rank=0, size=2, elements=9, k=2)
    with pytest.raises(FrameError, match="3 elements; expected at most 2"):
        tree.arrive(Message(0, 1, 0, np.arange(3, dtype=np.int32), np.ones(3, dtype=np.float32), 0, 9))


def test_gtopk_refuses_a_result_before_all_contributions() -> None:
    tree = GtopkTree(entries({}), rank=2, size=4, elements=9, k=2)
    tree.begin()
    early = Message(2, 0, 2, np.arange(1, dtype=np.int32), np.ones(1, dtype=np.float32), 0, 9)
    with pytest.raises(FrameError, match="expected nothing from that rank now, awaited ranks: 3"):
        tree.arrive(early)
    tree.arrive(replace(early, sender=3, round=0))
    assert tree.awaited == (0,)
    tree.arrive(early)
    assert tree.done


@algorithms
@pytest.mark.parametrize("dead", range(5))
def test_a_dead_rank_leaves_the_others_waiting_for_it(algorithm: str, dead: int) -> None:
    world = World(10, tuple(entries({rank: 1.0, 2 * rank: 2.0}) for rank in range(5)), k=3)
    network = world.network(algorithm)
    network.silence(dead)
    network.run(lambda events: events - 1, ranks=range(5))
    alive = [exchange for rank, exchange in enumerate(network.exchanges) if rank != dead]
    # Up the tree, what is below a dead rank is missing to nobody else; down the tree, everybody waits for its parent.
    named = {rank for exchange in alive for rank in exchange.awaited}
    assert dead in named
    for exchange in alive:
        assert not exchange.done
        with pytest.raises(ExchangeError, match=rf"not done, awaited ranks: {exchange.awaited[0]}"):
            exchange.result()
        with pytest.raises(ExchangeError, match="not done"):
            exchange.returned()


@algorithms
def test_nothing_is_done_before_it_has_begun(algorithm: str) -> None:
    network = World(4, (entries({1: 2.0}),), k=1).network(algorithm)
    assert not network.exchanges[0].done
    with pytest.raises(ExchangeError, match="not done, awaited ranks: none"):
        network.exchanges[0].result()
    assert list(network.begin(0)) == []
    assert as_dictionary(network.exchanges[0].result()) == {1: 2.0}


@algorithms
@pytest.mark.parametrize(
    ("own", "message"),
    [
        (entries({4: 1.0}), r"own slice of rank 0: indices 4 to 4; expected them in \[0, 4\)"),
        (Slice(np.array([2, 1], np.int32), np.ones(2, np.float32)), "out of order"),
        (Slice(np.array([2, 1], np.int32), np.ones(1, np.float32)), "of one shape"),
    ],
)
def test_an_own_slice_must_be_well_formed(algorithm: str, own: Slice, message: str) -> None:
    with pytest.raises(FrameError, match=message):
        make_exchange(algorithm, own, rank=0, size=2, elements=4, k=1)


def test_gtopk_keeps_at_least_one_entry() -> None:
    arguments: dict[str, Any] = {"rank": 1, "size": 2, "elements": 4}
    with pytest.raises(ConfigError, match="gtopk on rank 1: keeps k = 0 entries; expected at least 1"):
        GtopkTree(entries({}), **arguments, k=0)


@algorithms
def test_own_slices_do_not_change(algorithm: str) -> None:
    world = World(9, tuple(entries({r: 1.0, r + 1: -2.0, 8: 3.0}) for r in range(5)), k=1)
    before = [bits(part) for part in world.slices]
    run(world, algorithm, 5)
    assert [bits(part) for part in world.slices] == before
