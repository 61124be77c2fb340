"""The place and role of a process, from what launchers set."""

from __future__ import annotations

import ipaddress
from itertools import starmap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import CHARACTERS

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job
from taihu.launch.place import (
    Launch,
    choose_address,
    coordinator_at,
    derived_port,
    expand_nodelist,
    find_launch,
    fit_to_size,
    role_of,
)

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "RANK": "3",
    "WORLD_SIZE": "5",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "3280535553",
}
SRUN = {
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "6",
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NODELIST": "n[001-003,7]",
    "SLURM_STEP_NODELIST": "n[002-003]",
}
PLAIN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7071"}


def test_torchrun_says_where_rank_0_is_and_its_own_port_is_left_alone() -> None:
    launch = find_launch(TORCHRUN)
    assert (launch.launcher, launch.rank, launch.size, launch.host, launch.one_host) == (
        "torchrun",
        3,
        5,
        "n1",
        False,
    )
    assert launch.port is not None
    assert launch.port != 29500
    assert find_launch({**TORCHRUN, "RANK": "0"}).port == launch.port
    # Hosts count their own restarts, and meet all the same.
    assert find_launch({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}).port == launch.port
    assert find_launch({**TORCHRUN, "MASTER_PORT": "29501"}).port != launch.port
    assert find_launch({**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}).one_host


def test_mpirun_does_not_say_where_rank_0_is() -> None:
    launch = find_launch(MPIRUN)
    assert (launch.launcher, launch.rank, launch.size, launch.host, launch.one_host) == ("mpirun", 2, 4, None, True)
    assert launch.port == find_launch({**MPIRUN, "OMPI_COMM_WORLD_RANK": "0"}).port
    told = find_launch({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "a"})
    assert (told.host, told.port, told.one_host) == ("a", launch.port, False)
    assert find_launch({**MPIRUN, "MASTER_ADDR": "a", "MASTER_PORT": "99"}).port == 99


def test_srun_names_the_hosts_of_the_step_the_first_of_which_has_rank_0() -> None:
    launch = find_launch(SRUN)
    assert (launch.launcher, launch.rank, launch.size, launch.host, launch.one_host) == ("srun", 1, 6, "n002", False)
    assert launch.port == find_launch({**SRUN, "SLURM_PROCID": "0"}).port
    assert launch.port != find_launch({**SRUN, "SLURM_STEP_ID": "1"}).port
    assert find_launch({**SRUN, "SLURM_STEP_NODELIST": "n7"}).one_host
    assert find_launch({name: text for name, text in SRUN.items() if name != "SLURM_STEP_NODELIST"}).host == "n001"
    assert find_launch({**SRUN, "SLURM_STEP_NUM_TASKS": "3"}).size == 3


def test_other_launchers_set_enough_by_hand() -> None:
    assert find_launch(PLAIN) == Launch("RANK", 0, 2, None, "10.0.0.1", 7071)
    assert find_launch({"PMI_RANK": "1", "PMI_SIZE": "2"}) == Launch("mpiexec", 1, 2)


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [({**SRUN, **MPIRUN}, "mpirun"), ({**SRUN, **TORCHRUN}, "torchrun"), ({**SRUN, **PLAIN}, "srun")],
)
def test_the_innermost_of_nested_launchers_counts(environment: dict[str, str], launcher: str) -> None:
    assert find_launch(environment).launcher == launcher


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {},
            r"^no launcher: mpirun, srun or torchrun start taihu node, for example mpirun -n 5 taihu node job\.toml",
        ),
        ({**MPIRUN, "OMPI_COMM_WORLD_RANK": "4"}, "^mpirun: rank 4 of 4 processes makes no sense; .* from 0 to 3$"),
        ({"WORLD_SIZE": "2"}, "^environment variable RANK is missing, WORLD_SIZE is there; the launcher sets both$"),
        ({"RANK": "1"}, "^environment variable WORLD_SIZE is missing, RANK is there; the launcher sets both$"),
        (
            {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "x"},
            "^environment variable OMPI_COMM_WORLD_SIZE: expected a number, got",
        ),
        ({"SLURM_PROCID": "0"}, "^environment variable SLURM_NTASKS is missing, SLURM_PROCID is there"),
        ({**SRUN, "SLURM_STEP_NODELIST": "n[3-1]"}, r"^list of nodes 'n\[3-1\]': expected names such as"),
    ],
)
def test_an_environment_that_makes_no_sense(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_launch(environment)


def job_of(kind: str = "server", **cluster: int) -> Job:
    return Job.model_validate({"cluster": cluster, "exchange": {"kind": kind}})


@pytest.mark.parametrize(
    ("job", "size", "expected"),
    [
        (job_of(), 7, (2, 5)),
        (job_of(servers=1), 7, (1, 6)),
        (job_of(workers=3), 7, (4, 3)),
        (job_of(servers=3, workers=4), 7, (3, 4)),
        (job_of("ring"), 7, (0, 7)),
        (job_of("ring", servers=3, workers=7), 7, (0, 7)),
    ],
)
def test_the_number_that_is_not_set_follows_from_the_number_of_processes(
    job: Job, size: int, expected: tuple[int, int]
) -> None:
    fitted = fit_to_size(job, Launch("mpirun", 0, size))
    assert (fitted.servers, fitted.cluster.workers) == expected
    roles = [role_of(rank, fitted.servers) for rank in range(size)]
    assert [role.place for role in roles] == [*range(expected[0]), *range(expected[1])]
    assert [role.name for role in roles] == ["server"] * expected[0] + ["worker"] * expected[1]


@pytest.mark.parametrize(
    ("job", "size", "message"),
    [
        (job_of(), 2, "started 2 processes, but the job has 2 servers and needs a worker: start 3 processes or more"),
        (
            job_of(workers=3),
            3,
            "started 3 processes, but the job has 3 workers and needs a server: start 4 processes",
        ),
        (
            job_of(servers=2, workers=3),
            4,
            "2 servers and 3 workers: start 5 processes, or let cluster.workers follow",
        ),
        (job_of("ring", workers=3), 4, "a ring of 3 workers: start 3 processes"),
    ],
)
def test_a_wrong_number_of_processes_is_told_with_the_right_one(job: Job, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit_to_size(job, Launch("mpirun", 0, size))


@pytest.mark.parametrize(
    ("given_by_user", "launch", "expected"),
    [
        (None, Launch("srun", 0, 2, None, "n1", 5), ("n1", 5)),
        (None, Launch("srun", 0, 2, 2, "n1", 5), ("127.0.0.1", 5)),
        (None, Launch("mpirun", 0, 2, 1, None, 5), (None, 5)),
        ("n2", Launch("srun", 0, 2, 2, "n1", 5), ("n2", 5)),
        ("n2:6", Launch("srun", 0, 2, 2, "n1", 5), ("n2", 6)),
        ("[::1]", Launch("srun", 0, 2, 2, "n1", 5), ("::1", 5)),
        ("[::1]:6", Launch("srun", 0, 2, 2, "n1", 5), ("::1", 6)),
        ("n2", Launch("RANK", 0, 2), ("n2", None)),
    ],
)
def test_what_is_given_comes_before_what_the_launcher_says(
    given_by_user: str | None, launch: Launch, expected: tuple[str | None, int | None]
) -> None:
    assert coordinator_at(given_by_user, launch) == expected


@given(st.text(CHARACTERS))
def test_a_derived_port_is_no_port_of_outgoing_connections(words: str) -> None:
    assert 20000 <= derived_port(words) < 30000


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[001-003,7]", ["n001", "n002", "n003", "n7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("a,b[1,3].x,c", ["a", "b1.x", "b3.x", "c"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_lists_of_nodes(text: str, hosts: list[str]) -> None:
    assert expand_nodelist(text) == hosts


@pytest.mark.parametrize(
    "text", ["", "n[", "n]", "n[1", "n[a]", "n[]", "n[1-]", "n[1-2]]", "n[1-999999999]", "n[[1]]"]
)
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(ConfigError, match="list of nodes"):
        expand_nodelist(text)


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 20)), min_size=1, max_size=4), st.booleans())
def test_ranges_expand_to_what_they_count(spans: list[tuple[int, int]], padded: bool) -> None:
    def write(number: int) -> str:
        return f"{number:04}" if padded else str(number)

    text = ",".join(f"{write(first)}-{write(first + count)}" for first, count in spans)
    numbers = [number for first, count in spans for number in range(first, first + count + 1)]
    assert expand_nodelist(f"n[{text}]") == [f"n{write(number)}" for number in numbers]


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ([["10.0.0.1/24"], ["10.0.0.2/24"]], "10.0.0.1"),
        # A bridge for containers has the same address everywhere.
        ([["172.17.0.1/16", "10.0.0.1/24"], ["172.17.0.1/16", "10.0.0.2/24"]], "10.0.0.1"),
        # The network in which the others are.
        ([["192.168.1.5/24", "10.0.0.1/24"], ["10.0.0.2/24"], ["10.0.0.3/24", "192.168.9.1/24"]], "10.0.0.1"),
        # Behind routers: the first.
        ([["10.1.0.1/24", "192.168.1.5/24"], ["10.2.0.1/24"]], "10.1.0.1"),
        ([["fd00::1/64"], ["fd00::2/64"]], "fd00::1"),
        # Two ranks of one host.
        ([["10.0.0.1/24"], ["10.0.0.1/24"], ["10.0.0.2/24"]], "10.0.0.1"),
        ([[], ["10.0.0.2/24"]], None),
    ],
)
def test_the_address_that_the_others_use(interfaces: list[list[str]], expected: str | None) -> None:
    assert choose_address(interfaces) == expected


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(0, 3))
def test_in_one_network_the_address_in_it_is_found_whatever_else_there_is(hosts: list[int], noise: int) -> None:
    def interfaces(place: int, host: int) -> list[str]:
        own = [f"192.168.{10 * place + number}.1/24" for number in range(noise)]
        return ["172.17.0.1/16", *own, f"10.0.0.{host + 1}/24"]

    found = choose_address(list(starmap(interfaces, enumerate([9, *hosts]))))
    assert found is not None
    assert ipaddress.ip_address(found) == ipaddress.ip_address("10.0.0.10")
