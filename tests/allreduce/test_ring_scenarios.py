"""The pure ring against recorded scenarios: what a rank sends at first, and what it does with what arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.cluster import layout_of
from support.scenarios import check_scenario, parse_options, scenario_paths

from taihu.allreduce.order.operation import Schedule, Segment
from taihu.allreduce.ring.schedule import Broadcast, Ring
from taihu.core.planner.groups import Group
from taihu.core.planner.partition import FrameSpec, Shard


class Interpreter:
    """Scenario commands on the schedules of all ranks.

    `ring ranks P layers N ... segment K` and `broadcast ranks P elements N segment K root R` start; `begin R` says
    what rank R sends before anything has arrived, and `R gets hop H [A, B)` what it does with a segment then.
    """

    def __init__(self) -> None:
        self._ranks: list[Schedule] = []

    def __call__(self, line: str) -> str:
        first, *words = line.replace("[", "").replace(")", "").replace(",", "").split()
        commands: dict[str, Callable[[Sequence[str]], str]] = {
            "ring": self._start_ring,
            "broadcast": self._start_broadcast,
            "begin": lambda words: _write(self._ranks[int(words[0])].first_segments()),
            "done?": lambda _: ", ".join(f"rank {r}" for r, each in enumerate(self._ranks) if each.done) or "nobody",
        }
        return commands[first](words) if first in commands else self._arrive(int(first), words)

    def _start_ring(self, words: Sequence[str]) -> str:
        options = parse_options(words, {"ranks": "", "layers": "", "segment": ""})
        size, sizes = int(options["ranks"]), list(map(int, options["layers"].split()))
        groups = (Group(0, len(sizes) - 1),)
        chunks = [
            Shard(layout_of(*sizes), size, rank).frames(groups, int(options["segment"])) for rank in range(size)
        ]
        self._ranks = [Ring(rank, chunks) for rank in range(size)]
        return "\n".join(f"chunk {number}: {_ranges(chunk)}" for number, chunk in enumerate(chunks))

    def _start_broadcast(self, words: Sequence[str]) -> str:
        options = parse_options(words, {"ranks": "", "elements": "", "segment": "", "root": ""})
        size, layout = int(options["ranks"]), layout_of(int(options["elements"]))
        frames = Shard(layout, 1, 0).frames((Group(0, 0),), int(options["segment"]))
        self._ranks = [Broadcast(rank, size, frames, int(options["root"])) for rank in range(size)]
        return "ok"

    def _arrive(self, rank: int, words: Sequence[str]) -> str:
        _, _, hop, start, stop = words
        arrival = self._ranks[rank].arrive(int(hop), int(start), int(stop) - int(start))
        sent = "nothing" if arrival.forward is None else _write([arrival.forward])
        return f"{arrival.action.value}; sends {sent}"


def _write(segments: Sequence[Segment]) -> str:
    return (
        "\n".join(
            f"hop {each.hop} [{each.frame.offset}, {each.frame.offset + each.frame.count})" for each in segments
        )
        or "nothing"
    )


def _ranges(chunk: Sequence[FrameSpec]) -> str:
    return (
        ", ".join(" + ".join(f"[{piece.start}, {piece.stop})" for piece in frame.pieces) for frame in chunk)
        or "nothing"
    )


@pytest.mark.parametrize("path", scenario_paths("ring"), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check_scenario(path, Interpreter())
