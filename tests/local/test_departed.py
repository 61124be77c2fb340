"""Members that are waited for in vain, against every look at them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taihu.local.processes.departed import DepartedMembers

MEMBERS = ("server 0", "server 1", "worker 0")
LOOKS = st.lists(
    st.tuples(
        st.integers(1, 8).map(lambda quarters: quarters / 4),
        st.sets(st.sampled_from(MEMBERS)),
        st.none() | st.sets(st.sampled_from(MEMBERS)),
    ),
    max_size=30,
)


@given(LOOKS)
def test_who_was_interrupted_and_is_awaited_all_the_time_is_departed(
    looks: list[tuple[float, set[str], set[str] | None]],
) -> None:
    departed, now = DepartedMembers("server 0", 10.0), 0.0
    history: list[tuple[float, set[str]]] = []
    for after, interrupted, missing in looks:
        now += after
        vain = interrupted & ({"server 0"} if missing is None else missing)
        history.append((now, vain))
        found = departed.look(now, sorted(interrupted), missing)
        long_enough = set()
        for name in vain:
            since = now
            for time, names in reversed(history):
                if name not in names:
                    break
                since = time
            if now - since >= (10.0 if missing is None else 1.0):
                long_enough.add(name)
        assert (found is not None) == bool(long_enough)
        assert found is None or found in long_enough


def test_nobody_is_departed_while_all_are_there() -> None:
    departed = DepartedMembers("server 0", 10.0)
    assert not any(departed.look(float(now), ["worker 0"], []) for now in range(99))
    assert not any(departed.look(float(now), [], None) for now in range(99))
