"""Ranks and the coordinator by DNS: whoever asks when all are there gets the same answer."""

from __future__ import annotations

import random
from collections.abc import Collection
from ipaddress import IPv4Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError, PeerUnreachableError
from taihu.core.coordination.discovery import (
    all_addresses,
    find_coordinator,
    find_rank,
    first_host,
    given_names,
    number_among,
    place_among,
)
from taihu.core.job import Job
from taihu.core.settings import ClusterSettings

NOT_ANSWERED = "203.0.113.250"
"""An address that every machine has beside the one that the name has."""


def addresses_of(order: random.Random, count: int) -> list[str]:
    """Different ones, of which some differ in their last numbers alone."""
    near = order.randrange(2**32 - 300)
    numbers = [order.choice([order.randrange(2**32), near + order.randrange(300)]) for _ in range(count)]
    return [text for text in dict.fromkeys(str(IPv4Address(number)) for number in numbers) if text != NOT_ANSWERED]


class FakeClock:
    """Time passes by sleeping alone."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_everybody_has_another_rank_whatever_the_order_of_the_answers(count: int, seed: int) -> None:
    order = random.Random(seed)
    addresses = addresses_of(order, count)

    def resolve(_: str) -> Collection[str]:
        return order.sample(addresses, len(addresses))

    ranks = [
        place_among([own, NOT_ANSWERED], all_addresses("worker", len(addresses), 1, resolve=resolve), "worker")
        for own in addresses
    ]
    assert sorted(ranks) == list(range(len(addresses)))
    expected = sorted(addresses, key=lambda text: int(IPv4Address(text)))
    assert list(all_addresses("worker", len(addresses), 1, resolve=resolve)) == expected


@given(st.integers(1, 8), st.integers(0, 12))
def test_it_waits_until_as_many_are_there(count: int, comes_after: int) -> None:
    clock, asked = FakeClock(), []

    def resolve(name: str) -> Collection[str]:
        asked.append(name)
        return [f"10.0.0.{i}" for i in range(count if len(asked) > comes_after else count - 1)]

    assert len(all_addresses("server", count, 1000, resolve=resolve, clock=clock)) == count
    assert len(asked) == comes_after + 1


def test_names_that_stay_short_of_addresses_are_told_in_time() -> None:
    clock = FakeClock()
    with pytest.raises(PeerUnreachableError, match="name worker: 1 addresses after 30 s, expected 3; start as many"):
        all_addresses("worker", 3, 30, resolve=lambda _: ["10.0.0.1"], clock=clock)
    assert clock.time_s == pytest.approx(30)


def test_a_machine_that_has_none_of_the_addresses_is_told() -> None:
    with pytest.raises(ConfigError, match=r"name worker: .* this machine \(10.0.0.9\) among 10.0.0.1"):
        place_among(["10.0.0.9"], ["10.0.0.1", "10.0.0.2"], "worker")


def test_numbers_and_launchers_come_before_dns() -> None:
    job = Job()
    assert find_rank("2", {"RANK": "1"}, "worker", job) == 2
    assert find_rank(None, {"RANK": "1"}, "worker", job) == 1
    assert find_rank(None, {"TAIHU_RANK": "0", "RANK": "1"}, "worker", job) == 0
    assert find_rank(None, {}, "worker", job) is None
    with pytest.raises(ConfigError, match="rank 'first': expected a number or dns:NAME"):
        find_rank("first", {}, "worker", job)


def test_this_machine_finds_itself_under_its_own_name() -> None:
    job = Job(cluster=ClusterSettings(servers=1, workers=1, coordinator="dns:localhost:7070", connect_timeout_s=5))
    assert find_coordinator(job).cluster.coordinator == "127.0.0.1:7070"
    assert find_coordinator(Job()).cluster.coordinator is None


WORDS = st.from_regex("[a-z]([a-z0-9_-]{0,8}[a-z0-9])?", fullmatch=True)


@given(WORDS, st.sampled_from("_-"), st.integers(1, 12), st.integers(1, 12), st.randoms())
def test_containers_that_come_back_elsewhere_are_who_they_were(
    project: str, between: str, servers: int, workers: int, order: random.Random
) -> None:
    names = {
        "server": [between.join((project, "server", str(i + 1))) for i in range(servers)],
        "worker": [between.join((project, "worker", str(i + 1))) for i in range(workers)],
    }
    everybody = [*names["server"], *names["worker"]]
    # Some have been started again since, behind all others.
    places = order.sample(range(2, 200), len(everybody))
    known = {name: f"10.0.0.{place}" for name, place in zip(everybody, places, strict=True)}

    def resolve(name: str) -> Collection[str]:
        return {known[each] for each in names.get(name, [name]) if each in known}

    for service, count in (("server", servers), ("worker", workers)):
        ranks = [number_among(["0f3a9c", name], service, count) for name in names[service]]
        assert ranks == list(range(count))
        for name in everybody:
            first = first_host(["0f3a9c", name], service, count, 1, resolve=resolve)
            assert known[first] == known[names[service][0]]
            assert not first[0].isdigit()


def test_the_first_container_is_awaited_by_its_name_and_by_nobody_elses() -> None:
    clock, asked = FakeClock(), []
    known = {"taihu_server_2": "10.0.0.3", "other_server_1": "10.0.9.9"}

    def resolve(name: str) -> Collection[str]:
        asked.append(name)
        if len(asked) > 20:
            known["taihu_server_1"] = "10.0.0.9"
        if name == "server":
            return [address for each, address in known.items() if each.startswith("taihu")]
        return [known[name]] if name in known else []

    names = ["other_worker_1", "taihu_worker_3"]
    assert first_host(names, "server", 2, 1000, resolve=resolve, clock=clock) == "taihu_server_1"
    assert clock.time_s > 0


def test_containers_that_are_told_no_names_go_by_addresses() -> None:
    def resolve(name: str) -> Collection[str]:
        return ["10.0.0.10", "10.0.0.9"] if name == "server" else []

    for names in ([], ["0f3a9c"], ["taihu_worker_1"], ["worker-0"], ["server_0"], ["a_myserver_1"]):
        assert first_host(names, "server", 2, 1, resolve=resolve) == "10.0.0.9"
        assert number_among(names, "server", 2) is None
    assert number_among(["taihu_server_3"], "server", 2) is None


@pytest.mark.parametrize(
    ("own", "told", "given"),
    [
        ("0f3a9c", ("0f3a9c", ["taihu_worker_2"]), {"taihu_worker_2"}),
        ("taihu-worker-0", ("taihu-worker-0.taihu.svc", ["taihu-worker-0"]), set[str]()),
    ],
)
def test_names_of_hosts_own_are_no_numbers(
    own: str, told: tuple[str, list[str]], given: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taihu.core.coordination.discovery.gethostname", lambda: own)
    monkeypatch.setattr("taihu.core.coordination.discovery.getaddrinfo", lambda *_: [(0, 0, 0, "", ("10.0.0.1", 0))])
    monkeypatch.setattr("taihu.core.coordination.discovery.gethostbyaddr", lambda _: (*told, ["10.0.0.1"]))
    assert given_names() == given
