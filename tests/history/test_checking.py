"""The model finds nothing in a history of a run that went well, and each single thing that did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.histories import Shape, histories_of, shapes

from taihu.core.history.checking import Verdict, check_histories
from taihu.core.history.records import Balance, Begin, End, Push, Read, Record, Sum, Update

Histories = dict[str, list[Record]]
Place = tuple[str, int]
Flipped = TypeVar("Flipped", Update, Balance)


def check(histories: Histories) -> Verdict:
    return check_histories(list(histories.values()))


def found(histories: Histories) -> list[str]:
    return [str(finding) for finding in check(histories).findings]


def counting(shape: Shape, histories: Histories) -> dict[Place, Record]:
    """The records of steps that count, by member and line."""
    places: dict[Place, Record] = {}
    for member, records in histories.items():
        life = -1
        for line, record in enumerate(records):
            life += isinstance(record, Begin)
            upto = min((after for after, _ in shape.lives[life + 1 :]), default=10**9)
            if not isinstance(record, Begin | End) and record.step <= upto:
                places[member, line] = record
    return places


@given(shapes())
def test_a_run_that_went_well_is_found_to_be_so(shape: Shape) -> None:
    verdict = check(histories_of(shape))
    assert verdict.findings == ()
    assert verdict.generations == len(shape.lives)
    assert (verdict.first, verdict.last, verdict.has_ended) == (1, shape.lives[-1][1], True)


@given(shapes(least=2), st.data())
def test_what_was_given_up_does_not_count(shape: Shape, data: st.DataObject) -> None:
    """A process that was killed has told less than others of steps behind the checkpoint."""
    histories = histories_of(shape)
    given_up = {(member, line) for member, records in histories.items() for line in range(len(records))} - counting(
        shape, histories
    ).keys()
    member = data.draw(st.sampled_from(sorted(histories)))
    lines = [
        line
        for name, line in sorted(given_up)
        if name == member and not isinstance(histories[name][line], Begin | End)
    ]
    assume(lines)
    cut = data.draw(st.sampled_from(lines))
    last = cut
    while last in lines:
        last += 1
    del histories[member][cut:last]
    assert found(histories) == []


def cut_off(shape: Shape, histories: Histories, places: dict[Place, Record]) -> set[Place]:
    """Updates of replicas in the last step of a generation that did no more: any of them may be missing, but 0's."""
    begins = [after for after, _ in shape.lives]
    last = {after for (_, done), after in zip(shape.lives, begins[1:], strict=False) if done == after}
    return {
        (member, line)
        for (member, line), record in places.items()
        if isinstance(record, Update) and not shape.zero and member != "worker 0" and record.step in last
    }


def dropped(histories: Histories, place: Place, data: st.DataObject) -> None:
    del histories[place[0]][place[1]]


def doubled(histories: Histories, place: Place, data: st.DataObject) -> None:
    histories[place[0]].insert(place[1], histories[place[0]][place[1]])


def swapped(histories: Histories, place: Place, data: st.DataObject) -> None:
    """With one of its kind in another step of the same generation."""
    member, line = place
    records = histories[member]
    record = records[line]
    begin = max(at for at, each in enumerate(records[:line]) if isinstance(each, Begin))
    end = next((at for at, each in enumerate(records) if at > line and isinstance(each, Begin)), len(records))
    others = [
        at
        for at in range(begin, end)
        if type(records[at]) is type(record) and records[at].step != record.step  # type: ignore[union-attr]
    ]
    assume(others)
    other = data.draw(st.sampled_from(others))
    records[line], records[other] = records[other], records[line]


def flipped(value: int, data: st.DataObject) -> int:
    return value ^ (1 << data.draw(st.integers(0, 63)))


def _flipped(thing: Flipped, field: str, data: st.DataObject) -> Flipped:
    changes: dict[str, Any] = {field: flipped(getattr(thing, field), data)}
    return replace(thing, **changes)


def changed(histories: Histories, place: Place, data: st.DataObject, change: Callable[..., Record | None]) -> None:
    record = change(histories[place[0]][place[1]], data)
    assume(record is not None)
    histories[place[0]][place[1]] = record  # type: ignore[assignment]


def other_version(record: Record, data: st.DataObject) -> Record | None:
    if not isinstance(record, Update):
        return None
    # What the first step found nobody else has seen.
    field = data.draw(st.sampled_from(["after", "seen"] if record.step == 1 else ["before", "after", "seen"]))
    return _flipped(record, field, data)


def other_values(record: Record, data: st.DataObject) -> Record | None:
    match record:
        case Read():
            return replace(record, seen=flipped(record.seen, data))
        case Sum():
            rank = data.draw(st.integers(0, len(record.parts) - 1))
            part = record.parts[rank]._replace(bits=flipped(record.parts[rank].bits, data))
            parts = (*record.parts[:rank], part, *record.parts[rank + 1 :])
            return replace(record, parts=parts)
        case _:
            return None


def other_sum(record: Record, data: st.DataObject) -> Record | None:
    """As if one rank had gone in twice."""
    if not isinstance(record, Update) or record.gradient is None or record.gradient.total is None:
        return None
    return replace(record, gradient=record.gradient._replace(total=record.gradient.total * 1.5 + 1, bits=1))


def other_residual(record: Record, data: st.DataObject) -> Record | None:
    if not isinstance(record, Push) or record.balance is None:
        return None
    field = data.draw(st.sampled_from(["before", "owed", "after", "together"]))
    return replace(record, balance=_flipped(record.balance, field, data))


def foreign_rank(record: Record, data: st.DataObject) -> Record | None:
    return replace(record, parts=(*record.parts, record.parts[0])) if isinstance(record, Sum) else None


def exchanged_ranks(record: Record, data: st.DataObject) -> Record | None:
    if not isinstance(record, Sum) or len(record.parts) < 2 or record.parts[0] == record.parts[1]:
        return None
    return replace(record, parts=(record.parts[1], record.parts[0], *record.parts[2:]))


Mutation = Callable[[Histories, Place, st.DataObject], None]


def single(mutate: Mutation, shape: Shape, data: st.DataObject, *kinds: type[Record]) -> None:
    """Change one thing of a kind that counts, and have it found in its step, or the one behind."""
    histories = histories_of(shape)
    places = counting(shape, histories)
    place = data.draw(st.sampled_from(sorted(at for at, record in places.items() if isinstance(record, kinds))))
    mutate(histories, place, data)
    if mutate is dropped and place in cut_off(shape, histories, places):
        return
    seen = check(histories).findings
    assert seen, f"{mutate} of {places[place]} was not found"
    if mutate in {dropped, doubled}:
        assert seen[0].step in {places[place].step, places[place].step + 1}  # type: ignore[union-attr]


@given(shapes(), st.data())
def test_a_record_that_is_missing_is_found(shape: Shape, data: st.DataObject) -> None:
    single(dropped, shape, data, Push, Sum, Update)


@given(shapes(), st.data())
def test_what_was_done_twice_is_found(shape: Shape, data: st.DataObject) -> None:
    single(doubled, shape, data, Push, Sum, Update)


@given(shapes(), st.data())
def test_another_order_of_steps_is_found(shape: Shape, data: st.DataObject) -> None:
    single(swapped, shape, data, Push, Sum, Update)


@given(shapes(), st.data())
def test_another_version_is_found(shape: Shape, data: st.DataObject) -> None:
    single(partial(changed, change=other_version), shape, data, Update)


@given(shapes(), st.data())
def test_other_values_are_found(shape: Shape, data: st.DataObject) -> None:
    single(partial(changed, change=other_values), shape, data, Read, Sum)


@given(shapes(), st.data())
def test_another_sum_is_found(shape: Shape, data: st.DataObject) -> None:
    single(partial(changed, change=other_sum), shape, data, Update)


@given(shapes(packed=True), st.data())
def test_a_residual_that_is_off_by_one_bit_is_found(shape: Shape, data: st.DataObject) -> None:
    single(partial(changed, change=other_residual), shape, data, Push)


@given(shapes(servers=1), st.data())
def test_a_foreign_rank_is_found(shape: Shape, data: st.DataObject) -> None:
    single(partial(changed, change=foreign_rank), shape, data, Sum)


@given(shapes(servers=1, workers=2), st.data())
def test_ranks_in_each_others_places_are_found(shape: Shape, data: st.DataObject) -> None:
    single(partial(changed, change=exchanged_ranks), shape, data, Sum)


SHAPE = Shape(1, 2, 1, (20, 30), compressed=True, lives=((0, 3), (2, 5)))


def test_findings_name_step_group_and_member() -> None:
    histories = histories_of(SHAPE)
    line = next(n for n, each in enumerate(histories["worker 1"]) if isinstance(each, Push) and each.group == 1)
    del histories["worker 1"][line]
    assert found(histories)[0] == "step 1, group 1, worker 1: no push"


def test_a_member_without_a_history_and_a_stranger_are_named() -> None:
    histories = histories_of(SHAPE)
    del histories["worker 1"]
    assert found(histories)[0] == "worker 1: it has no history; put the files of all processes into one folder"
    histories = histories_of(SHAPE)
    histories["worker 7"] = [
        replace(record, member="worker 7") if isinstance(record, Begin) else record
        for record in histories["worker 1"]
    ]
    assert "worker 7: outside the world of 1 servers and 2 workers" in found(histories)


@pytest.mark.parametrize(("done", "again"), [(2, 0), (3, 1), (4, 2)])
def test_a_generation_that_is_lost_early_takes_nothing_back(done: int, again: int) -> None:
    """Seed 147: members fell back to a checkpoint, and held what they had made before when they began once more."""
    verdict = check(histories_of(replace(SHAPE, lives=((0, 6), (2, done), (5, 7)))))
    assert (verdict.findings, verdict.first, verdict.last, verdict.made_again) == ((), 1, 7, again)


def test_steps_count_of_the_generation_that_made_them_last() -> None:
    """The first one's step 4 is given up: the second made it again, and the third goes on from there."""
    histories = histories_of(replace(SHAPE, lives=((0, 6), (2, 4), (4, 7))))
    sums = [line for line, each in enumerate(histories["server 0"]) if isinstance(each, Sum) and each.step == 4]
    del histories["server 0"][sums[0]]
    assert found(histories) == []
    del histories["server 0"][sums[-1] - 1]
    assert found(histories)


def test_a_run_without_an_end_counts_up_to_its_last_checkpoint() -> None:
    histories = {member: records[:-1] for member, records in histories_of(SHAPE).items()}
    verdict = check(histories)
    assert (verdict.findings, verdict.first, verdict.last, verdict.has_ended) == ((), 1, 2, False)


def test_two_runs_in_one_folder_are_told_apart() -> None:
    """Those that do not recover have no numbers; those that do have other ones, drawn at random."""
    histories = histories_of(SHAPE)
    doubled_up = {member: [*records[:-1], *records] for member, records in histories.items()}
    assert found(doubled_up)
    once = {
        member: [replace(each, generation=0) if isinstance(each, Begin) else each for each in records]
        for member, records in histories_of(replace(SHAPE, lives=((0, 3),))).items()
    }
    assert not check(once).findings
    doubled_up = {member: [*records[:-1], *records] for member, records in once.items()}
    assert found(doubled_up)[0] == "server 0: several runs were recorded there; give each a folder"
    assert found({"worker 0": histories["worker 0"][1:]})[0].startswith("a history does not begin with")


def test_members_of_a_generation_were_told_the_same() -> None:
    histories = histories_of(SHAPE)
    begin = histories["worker 1"][0]
    assert isinstance(begin, Begin)
    histories["worker 1"][0] = replace(begin, after=1)
    assert "worker 1: it was told of another run, or another step" in found(histories)[0]


def test_a_process_that_was_refused_leaves_its_beginning_in_the_file_of_the_one_that_lives() -> None:
    histories = {}
    for member, records in histories_of(SHAPE).items():
        begin = records[0]
        assert isinstance(begin, Begin)
        begin = replace(begin, generation=begin.generation + 2**40)
        histories[member] = [begin, *records[1:3], begin, *records[3:]]
    verdict = check(histories)
    assert (verdict.findings, verdict.has_ended) == ((), True)


def test_a_process_that_was_refused_may_come_late_with_the_beginning_of_an_earlier_generation() -> None:
    """Two were started in one place: seed 1489 had one ask to join a generation when the next one had begun."""
    histories = {}
    for member, records in histories_of(replace(SHAPE, lives=((0, 2), (2, 4)))).items():
        begins = [line for line, record in enumerate(records) if isinstance(record, Begin)]
        numbered = [
            replace(record, generation=record.generation + 2**40) if isinstance(record, Begin) else record
            for record in records
        ]
        later = begins[1] + 2
        histories[member] = [*numbered[:later], numbered[begins[0]], *numbered[later:]]
    verdict = check(histories)
    assert (verdict.findings, verdict.has_ended) == ((), True)


@given(shapes(workers=2), st.integers(1, 3), st.data())
def test_a_replica_that_is_lost_in_the_step_that_is_kept_lacks_some_of_it(
    shape: Shape, done: int, data: st.DataObject
) -> None:
    """Worker 0 has kept what the step left; of the others, one had not heard all of it when a member was lost."""
    shape = replace(shape, zero=0, compressed=False, lives=((0, done), (done, done + 2)))
    histories = histories_of(shape)
    rank = data.draw(st.integers(0, shape.workers - 1))
    records = histories[f"worker {rank}"]
    end = next(line for line, record in enumerate(records) if line and isinstance(record, Begin))
    own = [line for line in range(end) if isinstance(each := records[line], Update) and each.step == done]
    cut = data.draw(st.sampled_from(own))
    records[cut:end] = [record for record in records[cut:end] if isinstance(record, Push)]
    assert bool(found(histories)) == (rank == 0)
    if rank and cut > own[0]:
        update = records[own[0]]
        assert isinstance(update, Update)
        records[own[0]] = _flipped(update, "after", data)
        assert found(histories)


def test_a_process_that_is_started_behind_the_end_takes_nothing_back() -> None:
    """A server is killed when all have ended well, and another one begins in its place until somebody ends it."""
    histories = histories_of(SHAPE)
    begin = histories["server 0"][0]
    assert isinstance(begin, Begin)
    again = replace(begin, generation=2**40, after=4)
    histories["server 0"].append(again)
    verdict = check(histories)
    assert (verdict.findings, verdict.last, verdict.has_ended) == ((), 5, True)
    push = next(record for record in histories["worker 1"] if isinstance(record, Push) and record.step == 5)
    histories["worker 1"] += [replace(again, member="worker 1"), push]
    assert found(histories)


def test_a_process_that_lives_on_where_another_one_has_its_place_has_a_file_of_its_own() -> None:
    """Its agent's machine was cut off, and it went on behind what the others had given up by then."""
    histories = histories_of(Shape(1, 2, 1, (5, 3), compressed=False, lives=((0, 2), (1, 3))))
    whole = histories.pop("worker 1")
    second = [line for line, record in enumerate(whole) if isinstance(record, Begin)][1]
    lived_on = whole[:second]
    for files in ([lived_on, whole[second:]], [whole[second:], lived_on]):
        assert check_histories([*histories.values(), *files]).findings == ()
    begun_twice = [whole[second]]  # by one that was killed before it took part
    assert check_histories([*histories.values(), lived_on, whole[second:], begun_twice]).findings == ()
