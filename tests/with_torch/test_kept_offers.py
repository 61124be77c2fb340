"""The step from which a script goes on, against a model of hosts whose memory is kept or lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.core.checkpoint.held_steps import Label
from taihu.torch.kept.offers import Held, Offer, choose

GENERATION = 5


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """The hosts of the workers of a life, the last step that each has held, and the hosts of those that follow."""
    workers = draw(st.integers(1, 5))
    hosts = draw(st.lists(st.integers(1, 3), min_size=workers, max_size=workers))
    last = draw(st.integers(1, 9))
    held = draw(st.lists(st.integers(last - 1, last), min_size=workers, max_size=workers))
    after = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5) | st.permutations(hosts))
    return hosts, held, after


def offers_of(hosts: list[int], held: list[int], after: list[int]) -> list[Offer]:
    """All that the workers on the hosts `after` find: two steps of each, and older ones of an earlier life."""
    workers, offers = len(hosts), []
    for host in after:
        own = {
            Held(rank, Label(GENERATION, step), workers)
            for rank, (its, last) in enumerate(zip(hosts, held, strict=True))
            for step in (last - 1, last)
            if its == host
        }
        first = hosts.index(host) if host in hosts else -1
        alike = {each for each in own if each.writer == first}
        older = {Held(0, Label(GENERATION - 1, 50), 2)} if host == 1 else set()
        offers.append(Offer(host, frozenset(alike | older), frozenset(own | older)))
    return offers


@given(lives())
def test_the_newest_step_that_all_have_is_gone_on_from_wherever_its_parts_lie(
    life: tuple[list[int], list[int], list[int]],
) -> None:
    hosts, held, after = life
    offers = [Offer.heard(each.told()) for each in offers_of(hosts, held, after)]
    chosen = choose(offers)
    first = {host: hosts.index(host) for host in hosts}
    if not set(after) & set(hosts):
        expected = Label(GENERATION - 1, 50) if 1 in after else None
        assert (None if chosen is None else chosen.held.label) == expected
        return
    assert chosen is not None
    # Whoever reads a part is on the host of who has held it.
    assert hosts[chosen.held.writer] == after[chosen.reader]
    assert chosen.held.writer == first[after[chosen.reader]]
    for writer, reader in chosen.own.items():
        assert hosts[writer] == after[reader]
        assert hosts[writer] != after[writer] or reader == writer
    newest = max(held[first[host]] for host in set(after) & set(hosts))
    is_whole = len(after) == len(hosts) and set(hosts) <= set(after)
    assert chosen.held.label == Label(GENERATION, min(held) if is_whole else newest)
    if is_whole:
        assert chosen.own.keys() == set(range(len(hosts)))
    if len(after) != len(hosts):
        assert not chosen.own


def test_nothing_held_is_nothing_to_go_on_from() -> None:
    assert choose([Offer(1), Offer(2)]) is None
