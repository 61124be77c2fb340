"""Bugs of the daemons that explored seeds have shown, by their faults: each has to end well now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import pytest

from taihu.explore.campaign.campaign import explored
from taihu.explore.campaign.work import Found, Smaller, Work

Cases = list[tuple[int, Smaller]]

RING, SERVERS = 2, 8
"""Seeds of such jobs."""

FAREWELLS = (
    # The answer that the run is over is lost with its connection: the worker looked for a coordinator that had gone.
    (RING, "late", 'drop worker 1 at its 1st "receive Finish"'),
    (RING, "early", 'half-open worker 1 at its 1st "receive Finish"'),
    (RING, "early", 'partition worker 1 at its 1st "receive Finish" for 2 s'),
    (SERVERS, "early", 'drop server 0 at its 1st "send Finish"'),
    (SERVERS, "twice", 'half-open worker 0 at its 1st "receive Finish"'),
    (SERVERS, "never", 'drop worker 1 at its 1st "receive Finish"'),
    # The coordinator dies when one worker has ended well: the others waited for that one until they gave up.
    (SERVERS, "early", 'kill server 0 at its 2nd "send Finish"'),
    (SERVERS, "never", 'kill server 0 at its 2nd "send Finish"'),
    (RING, "late", 'kill worker 0 at its 2nd "send Finish"'),
    # A worker that is killed in its farewell came back to a run that had finished without it, and failed.
    (SERVERS, "late", 'kill worker 0 at its 2nd "receive Finish"'),
    (RING, "early", 'kill worker 0 at its 1st "stop a server"'),
    (RING, "late", 'kill worker 1 at its 1st "receive Finish"'),
    (SERVERS, "early", 'kill worker 1 at its 1st "receive Finish"'),
)


def over_for_one() -> Cases:
    cases = [
        (seed, Smaller(servers=0 if seed == RING else 2, workers=2, steps=3, supervisor=habit, faults=[fault]))
        for seed, habit, fault in FAREWELLS
    ]
    # The coordinator's process ended when it had answered, although the answer was lost: seeds as they are drawn.
    lost = 'drop worker 0 at its 1st "send Finish"', 'drop server 0 at its 1st "send Finish"'
    return [*cases, (16, Smaller(faults=lost[:1])), (1, Smaller(faults=lost[1:])), (21, Smaller(faults=lost[1:]))]


def who_leaves() -> Cases:
    points = (
        'at its 1st "receive Join"',
        'at its 2nd "push"',
        'at its 1st "evaluation"',
        'at its 1st "send Finish"',
    )
    return [
        (
            seed,
            Smaller(servers=servers, workers=2, steps=3, supervisor=habit, faults=[f"leave worker {rank} {point}"]),
        )
        for point in points
        for seed, servers in ((RING, 0), (SERVERS, 2))
        for rank, habit in ((0, "late"), (1, "early"))
    ]


def small_ring(supervisor: str, *faults: str) -> Cases:
    return [(RING, Smaller(servers=0, workers=2, steps=3, every_steps=2, supervisor=supervisor, faults=faults))]


KILLS_ON_SEVERAL_HOSTS = (
    # Rings that divide optimizer state, and that hold gradients back; spread layers; servers that do either.
    (2, 'kill worker 2 at its 7th "push"'),
    (2, 'kill worker 0 at its 7th "update"'),
    (14, 'kill worker 1 at its 7th "update"'),
    (106, 'kill worker 0 at its 3rd "push"'),
    (106, 'kill worker 1 at its 3rd "push"'),
    (32, 'kill worker 1 at its 7th "update"'),
    (20, 'kill server 0 at its 7th "update"'),
    (20, 'kill server 1 at its 3rd "update"'),
    (20, 'kill worker 1 at its 7th "push"'),
    (22, 'kill server 1 at its 3rd "update"'),
    (22, 'kill worker 0 at its 3rd "push"'),
    (89, 'kill server 2 at its 3rd "update"'),
    # A worker that had not heard called the host of the coordinator, and took it for something else.
    (87, 'kill server 1 at its 2nd "send Fetch"'),
    # Others had completed a step that worker 2 had not, and began the next one: nobody held the one before any more.
    (1302, 'kill worker 3 at its 5th "open"'),
)


CASES: Mapping[str, Cases] = {
    "several hosts": [(seed, Smaller(supervisor="local", faults=[fault])) for seed, fault in KILLS_ON_SEVERAL_HOSTS],
    # Two processes in one place wrote the same part at the same time.
    "two write": [(195, Smaller(supervisor="twice", faults=['kill worker 1 at its 206th "lock"']))],
    "over for one": over_for_one(),
    "leaves": who_leaves(),
    "leaves what is over": [
        (
            1394,
            Smaller(servers=0, workers=2, steps=3, agents=[0.0], faults=['leave worker 1 at its 1st "shut down"']),
        )
    ],
    "stored": small_ring("never", 'drop worker 1 at its 2nd "send Stored"')
    + small_ring("never", 'half-open worker 1 at its 2nd "receive Stored"'),
    "partition heals": [
        (
            3010126,
            Smaller(
                faults=[
                    'fast-clock worker 2 at its 1st "close a channel"',
                    'partition worker 0 at its 4th "open" for 2 s',
                ]
            ),
        )
    ],
    "lost coordinator": [
        (
            7010436,
            Smaller(faults=['kill worker 0 at its 5th "allocate"', 'full-disk worker 0 at its 4th "fetch" for 2 s']),
        )
    ],
    "deaf for a while": [(7035265, Smaller())],
    "written over": small_ring(
        "early", 'kill worker 0 at its 2nd "send GetProfile"', 'full-disk worker 1 at its 2nd "send Begin" for 8 s'
    ),
    "host is named": small_ring("never", 'kill worker 0 at its 1st "send GetPlan"'),
    "all at once": small_ring("late", 'kill worker 1 at its 1st "evaluation"', 'kill worker 0 at its 1st "save"'),
    "nobody left": small_ring("local", 'terminate worker 1 at its 1st "send Join"', "interrupt run after 20 s"),
    "broken call": [
        (
            28550,
            Smaller(
                supervisor="local",
                faults=['drop worker 0 at its 1st "send Begin"', 'kill worker 1 at its 1st "save"'],
            ),
        )
    ],
    "twin": [
        (
            87041,
            Smaller(
                supervisor="twice",
                faults=['kill worker 0 at its 2nd "close a channel"', 'drop-one worker 0 at its 2nd "send Keep"'],
            ),
        )
    ],
    "end is lost": [
        (
            7148872,
            Smaller(
                faults=[
                    "full-disk server 0 after 1.184406 s for 20 s",
                    'kill server 0 at its 3rd "send Finish"',
                ]
            ),
        )
    ],
    "held behind an end": [(8002604, Smaller())],
    "only worker leaves": [
        (17, Smaller(agents=[0.0, 0.0], faults=['leave worker 1 at its 1st "receive Join"'])),
    ],
    "lives on": [(205, Smaller(agents=[0.0, 3.36151], faults=["suspend agent 1 after 6.196648 s for 100 s"]))],
    "stopped for good": [
        (42, Smaller(agents=[0.0], faults=['stop worker 0 at its 1st "allocate" for 100 s'])),
    ],
}


@pytest.fixture(scope="module")
def outcomes() -> Mapping[str, list[Found]]:
    """The outcomes of all cases, of one process: it imports the project once."""
    found: Iterator[Found] = iter(explored(Work(cases=[case for cases in CASES.values() for case in cases])))
    return {name: list(islice(found, len(cases))) for name, cases in CASES.items()}


def check(
    outcomes: Mapping[str, list[Found]], name: str, *, ends_well: bool = True, happened: int | None = None
) -> None:
    """All of a name are judged right; the run `ends_well`, or not, and so many faults have `happened`."""
    assert len(outcomes[name]) == len(CASES[name])
    told: list[str] = []
    for found in outcomes[name]:
        all_happened = happened is None or len(found.done) == happened
        if found.problems or found.ended_well != ends_well or not all_happened:
            told += [*found.case, *found.done, *found.problems]
    assert not told, "\n".join(told)


def test_a_kill_costs_no_step_where_each_member_has_a_host_of_its_own(outcomes: Mapping[str, list[Found]]) -> None:
    """None of these jobs has a checkpoint but its last: what all go on from lay in memory of each."""
    check(outcomes, "several hosts", happened=1)


def test_two_processes_in_one_place_do_not_write_the_same_part(outcomes: Mapping[str, list[Found]]) -> None:
    check(outcomes, "two write", happened=1)


def test_a_run_is_over_for_all_when_it_is_for_one(outcomes: Mapping[str, list[Found]]) -> None:
    check(outcomes, "over for one")
    assert all(found.done for found in outcomes["over for one"])


def test_a_process_that_leaves_is_replaced_and_costs_no_step(outcomes: Mapping[str, list[Found]]) -> None:
    """As a pod does that is to move: wherever it is, and where it is started again much later."""
    check(outcomes, "leaves")
    assert all(found.done for found in outcomes["leaves"])


def test_a_connection_that_breaks_leaves_no_checkpoint_out(outcomes: Mapping[str, list[Found]]) -> None:
    """The last step was not kept: its parts were on the disk, and one member was not heard that told of its own."""
    check(outcomes, "stored", happened=1)


def test_a_part_is_told_of_again_when_a_partition_has_healed(outcomes: Mapping[str, list[Found]]) -> None:
    """One call waited as long as a coordinator is waited for, on a connection whose messages were on their way."""
    check(outcomes, "partition heals", happened=2)


def test_who_has_lost_its_coordinator_does_not_wait_to_tell_it_of_parts(
    outcomes: Mapping[str, list[Found]],
) -> None:
    """A worker told it of its last two parts, each for ten seconds, and had to end itself after twenty."""
    check(outcomes, "lost coordinator", ends_well=False, happened=2)


def test_a_partition_that_heals_before_all_have_to_end_costs_no_checkpoint(
    outcomes: Mapping[str, list[Found]],
) -> None:
    """A worker that had heard nothing for as long as a coordinator may be lost told it of its last part only once."""
    check(outcomes, "deaf for a while")


def test_a_checkpoint_that_counts_is_not_written_over(outcomes: Mapping[str, list[Found]]) -> None:
    """A worker was lost behind the last step, which was kept a second time: as far as a disk was not full."""
    check(outcomes, "written over", happened=2)


def test_who_hosts_a_coordinator_that_does_not_answer_is_named(outcomes: Mapping[str, list[Found]]) -> None:
    """It was killed before all had joined, and nobody starts it again: an address tells nobody who that is."""
    check(outcomes, "host is named", ends_well=False)


def test_a_launcher_starts_processes_again_that_have_ended_all_at_once(outcomes: Mapping[str, list[Found]]) -> None:
    check(outcomes, "all at once")


def test_a_ctrl_c_when_all_processes_have_ended_meets_nobody(outcomes: Mapping[str, list[Found]]) -> None:
    """It ended the process that explores: the run had ended, and was going on from its disks."""
    (found,) = outcomes["nobody left"]
    assert not found.problems
    assert [line for line in found.done if line.startswith("20")], found.done


def test_a_loss_behind_a_broken_call_to_join_is_one(outcomes: Mapping[str, list[Found]]) -> None:
    """A worker that had to ask twice was taken for one that had hung up: a loss that it told of ended the run."""
    check(outcomes, "broken call", happened=2)


def test_a_twin_that_ends_later_hides_no_results(outcomes: Mapping[str, list[Found]]) -> None:
    """Of two processes in one place, the one that lost it heard that the run has finished, and ended well, too."""
    check(outcomes, "twin", happened=2)


def test_an_end_that_lay_on_no_disk_when_its_coordinator_died_is_known_to_nobody(
    outcomes: Mapping[str, list[Found]],
) -> None:
    """One worker had heard of it, so that launchers start nobody again; the others look for a coordinator in vain."""
    check(outcomes, "end is lost", ends_well=False, happened=2)


def test_a_step_that_ends_behind_the_end_of_a_servers_part_is_not_held(outcomes: Mapping[str, list[Found]]) -> None:
    """Nothing of it is in the server's history: others would go on behind a step that nobody has told of."""
    check(outcomes, "held behind an end", happened=2)


def test_an_agent_whose_only_worker_somebody_interrupts_goes_on(outcomes: Mapping[str, list[Found]]) -> None:
    """It took that for the end of the run, which had another agent start the worker."""
    check(outcomes, "only worker leaves", happened=1)


def test_an_agent_ends_a_worker_that_is_stopped_for_good(outcomes: Mapping[str, list[Found]]) -> None:
    """It took that for one that lives: the run waited for it until it failed."""
    check(outcomes, "stopped for good", happened=1)
    assert outcomes["stopped for good"][0].virtual_s < 30


def test_a_worker_that_lives_on_behind_the_end_spoils_no_history(outcomes: Mapping[str, list[Found]]) -> None:
    """Its machine had stood still, and another one had its place: both told of what they did in one file."""
    check(outcomes, "lives on", happened=1)


def test_a_worker_that_is_to_leave_a_run_that_has_finished_costs_nobody_anything(
    outcomes: Mapping[str, list[Found]],
) -> None:
    """All had heard of the end, and the agent told by its exit code that it was interrupted."""
    check(outcomes, "leaves what is over", happened=1)
