"""Lists of hosts, and who is where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.core.base.errors import ConfigError
from taihu.hosts.placement import Host, Placement, hosts_in, hosts_of


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("host1", [Host("host1", 1)]),
        ("host1,host2:2", [Host("host1", 1), Host("host2", 2)]),
        ("me@10.0.0.1:3, [fe80::1]:2,[::1]", [Host("me@10.0.0.1", 3), Host("fe80::1", 2), Host("::1", 1)]),
        ("a,b:2,a:3", [Host("a", 4), Host("b", 2)]),
    ],
)
def test_a_list_of_hosts(text: str, hosts: list[Host]) -> None:
    assert hosts_of(text) == hosts


@pytest.mark.parametrize("text", ["", "a,,b", "a:0", "a:b", "a:-1", "-oProxyCommand=true", "a b", "::1", "a:1:2"])
def test_what_is_no_list_of_hosts(text: str) -> None:
    """Words that ssh takes for options are no hosts."""
    with pytest.raises(ConfigError, match="expected a name, or a name and workers, as in host1,host2:2"):
        hosts_of(text)


def test_a_file_of_hosts_as_open_mpi_and_deepspeed_have_it() -> None:
    text = "# my hosts\nhost1 slots=2 max_slots=4\n\n me@10.0.0.2   slots=3  # the large one\nhost3\nhost4:2\nhost1\n"
    expected = [Host("host1", 3), Host("me@10.0.0.2", 3), Host("host3", 1), Host("host4", 2)]
    assert hosts_in(text, "hosts") == expected


@pytest.mark.parametrize(
    "line", ["host1 slots=0", "host1 slots=two", "host1 2", "-oProxyCommand=true slots=1", "a,b"]
)
def test_a_line_that_names_no_host_is_told_by_its_number(line: str) -> None:
    with pytest.raises(ConfigError, match=r"my/hosts, line 2: .*: expected a host and its workers: host1 slots=2"):
        hosts_in(f"host1\n{line}\n", "my/hosts")
    with pytest.raises(ConfigError, match="my/hosts names no host"):
        hosts_in("# none\n", "my/hosts")


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=5), servers=st.integers(0, 7))
def test_every_member_is_on_one_host(counts: list[int], servers: int) -> None:
    """Workers fill the hosts in their order, servers go to them in turns: counted one by one."""
    placement = Placement([Host(f"h{index}", count) for index, count in enumerate(counts)], servers)
    expected: list[list[str]] = [[] for _ in counts]
    for index in range(servers):
        expected[index % len(counts)].append(f"server {index}")
    rank = 0
    for index, count in enumerate(counts):
        for local in range(count):
            expected[index].append(f"worker {rank}")
            assert placement.local(rank) == (local, count)
            rank += 1
    assert [placement.members(index) for index in range(len(counts))] == expected
    assert placement.workers == rank


def test_fewer_workers_leave_the_last_hosts_out() -> None:
    placement = Placement([Host("a", 2), Host("b", 2), Host("c", 1)], 1)
    assert placement.cut(3) == Placement([Host("a", 2), Host("b", 1)], 1)
    assert placement.cut(5) == placement
    with pytest.raises(ConfigError, match="6 workers: the hosts have room for 5; give a host as host:2"):
        placement.cut(6)
