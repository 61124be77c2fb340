"""Bugs of the daemons that explored seeds have shown, by their faults: each has to end well now."""

from __future__ import annotations

from taihu.explore.campaign.campaign import explored
from taihu.explore.campaign.work import Smaller, Work

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


def test_a_run_is_over_for_all_when_it_is_for_one() -> None:
    cases = [
        (seed, Smaller(servers=0 if seed == RING else 2, workers=2, steps=3, supervisor=habit, faults=[fault]))
        for seed, habit, fault in FAREWELLS
    ]
    # The coordinator's process ended when it had answered, although the answer was lost: seeds as they are drawn.
    lost = 'drop worker 0 at its 1st "send Finish"', 'drop server 0 at its 1st "send Finish"'
    cases += [(16, Smaller(faults=lost[:1])), (1, Smaller(faults=lost[1:])), (21, Smaller(faults=lost[1:]))]
    told: list[str] = []
    for found in explored(Work(cases=cases)):
        if found.problems or not (found.done and found.ended_well):
            told += [*found.case, *found.done, *found.problems]
    assert not told, "\n".join(told)


def test_a_process_that_leaves_is_replaced_and_costs_no_step() -> None:
    """As a pod does that is to move: wherever it is, and where it is started again much later."""
    points = (
        'at its 1st "receive Join"',
        'at its 2nd "push"',
        'at its 1st "evaluation"',
        'at its 1st "send Finish"',
    )
    cases = [
        (
            seed,
            Smaller(servers=servers, workers=2, steps=3, supervisor=habit, faults=[f"leave worker {rank} {point}"]),
        )
        for point in points
        for seed, servers in ((RING, 0), (SERVERS, 2))
        for rank, habit in ((0, "late"), (1, "early"))
    ]
    told: list[str] = []
    for found in explored(Work(cases=cases)):
        if found.problems or not (found.done and found.ended_well):
            told += [*found.case, *found.done, *found.problems]
    assert not told, "\n".join(told)


def test_a_connection_that_breaks_leaves_no_checkpoint_out() -> None:
    """The last step was not kept: its parts were on the disk, and one member was not heard that told of its own."""
    lost = 'drop worker 1 at its 2nd "send Stored"', 'half-open worker 1 at its 2nd "receive Stored"'
    cases = [(RING, Smaller(servers=0, workers=2, steps=3, supervisor="never", faults=[fault])) for fault in lost]
    for found in explored(Work(cases=cases)):
        assert not found.problems, found.problems
        assert found.done
        assert found.ended_well


def test_a_part_is_told_of_again_when_a_partition_has_healed() -> None:
    """One call waited as long as a coordinator is waited for, on a connection whose messages were on their way."""
    faults = ['fast-clock worker 2 at its 1st "close a channel"', 'partition worker 0 at its 4th "open" for 2 s']
    (found,) = explored(Work(cases=[(3010126, Smaller(faults=faults))]))
    assert not found.problems, found.problems
    assert len(found.done) == len(faults), found.done
    assert found.ended_well


def test_who_has_lost_its_coordinator_does_not_wait_to_tell_it_of_parts() -> None:
    """A worker told it of its last two parts, each for ten seconds, and had to end itself after twenty."""
    faults = ['kill worker 0 at its 1st "allocate"', 'full-disk worker 0 at its 4th "fetch" for 2 s']
    (found,) = explored(Work(cases=[(7010436, Smaller(faults=faults))]))
    assert not found.problems, found.problems
    assert len(found.done) == len(faults), found.done
    assert not found.ended_well


def test_a_partition_that_heals_before_all_have_to_end_costs_no_checkpoint() -> None:
    """A worker that had heard nothing for as long as a coordinator may be lost told it of its last part only once."""
    (found,) = explored(Work(picked=[7035265]))
    assert not found.problems, found.problems
    assert found.ended_well


def test_a_checkpoint_that_counts_is_not_written_over() -> None:
    """A worker was lost behind the last step, which was kept a second time: as far as a disk was not full."""
    faults = ['kill worker 0 at its 2nd "send GetProfile"', 'full-disk worker 1 at its 2nd "send Begin" for 8 s']
    case = Smaller(servers=0, workers=2, steps=3, supervisor="early", faults=faults)
    (found,) = explored(Work(cases=[(RING, case)]))
    assert not found.problems, found.problems
    assert len(found.done) == len(faults), found.done
    assert found.ended_well


def test_who_hosts_a_coordinator_that_does_not_answer_is_named() -> None:
    """It was killed before all had joined, and nobody starts it again: an address tells nobody who that is."""
    faults = ['kill worker 0 at its 1st "send GetPlan"']
    case = Smaller(servers=0, workers=2, steps=3, supervisor="never", faults=faults)
    (found,) = explored(Work(cases=[(RING, case)]))
    assert not found.problems, found.problems
    assert not found.ended_well


def test_a_launcher_starts_processes_again_that_have_ended_all_at_once() -> None:
    faults = ['kill worker 1 at its 1st "evaluation"', 'kill worker 0 at its 1st "save"']
    case = Smaller(servers=0, workers=2, steps=3, supervisor="late", faults=faults)
    (found,) = explored(Work(cases=[(RING, case)]))
    assert not found.problems, found.problems
    assert found.ended_well


def test_a_ctrl_c_when_all_processes_have_ended_meets_nobody() -> None:
    """It ended the process that explores: the run had ended, and was going on from its disks."""
    faults = ['terminate worker 1 at its 1st "send Join"', "interrupt run after 20 s"]
    (found,) = explored(
        Work(cases=[(RING, Smaller(servers=0, workers=2, steps=3, supervisor="local", faults=faults))])
    )
    assert not found.problems
    assert [line for line in found.done if line.startswith("20")], found.done


def test_a_loss_behind_a_broken_call_to_join_is_one() -> None:
    """A worker that had to ask twice was taken for one that had hung up: a loss that it told of ended the run."""
    faults = ['drop worker 0 at its 1st "send Begin"', 'kill worker 1 at its 1st "save"']
    (found,) = explored(Work(cases=[(28550, Smaller(supervisor="local", faults=faults))]))
    assert not found.problems
    assert found.ended_well
    assert len(found.done) == len(faults), found.done


def test_a_twin_that_ends_later_hides_no_results() -> None:
    """Of two processes in one place, the one that lost it heard that the run has finished, and ended well, too."""
    faults = ['kill worker 0 at its 2nd "close a channel"', 'drop-one worker 0 at its 2nd "send Keep"']
    (found,) = explored(Work(cases=[(87041, Smaller(supervisor="twice", faults=faults))]))
    assert not found.problems
    assert found.ended_well
    assert len(found.done) == len(faults), found.done


def test_who_comes_behind_an_end_does_not_hide_whoever_was_there() -> None:
    """A worker was to leave when its run was being stopped: the processes brought in its place found nobody."""
    faults = [
        'terminate worker 1 at its 17th "send frame"',
        'kill worker 0 at its 1st "connect"',
        'leave worker 0 at its 20th "receive frame"',
    ]
    (found,) = explored(Work(cases=[(7001887, Smaller(faults=faults))]))
    assert not found.problems, found.problems
    assert not found.ended_well
    assert len(found.done) == len(faults), found.done
