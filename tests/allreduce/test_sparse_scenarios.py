"""Sparse allreduce against recorded scenarios: who sends what to whom, and what everybody has in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.scenarios import check_scenario, parse_options, scenario_paths
from support.sparse_network import Network, make_exchange

from taihu.allreduce.sparse.exchange import Message, Slice


class Interpreter:
    """Scenario commands on the exchanges of all ranks; a slice is written as `index:value` pairs.

    `rank R brings SLICE` comes first for each rank, then `start ALGORITHM elements N k K`. What `begin R`,
    `deliver S to R` (the oldest message on this way) and `forge from S to R ...` say is what rank R sends then.
    `repeat` brings the last delivered message once more, `deliver all` all messages, lowest sender first.
    """

    def __init__(self) -> None:
        self._slices: list[Slice] = []
        self._network = Network([])
        self._last: Message

    def __call__(self, line: str) -> str:
        command, *words = line.split()
        commands: dict[str, Callable[[Sequence[str]], str]] = {
            "rank": self._bring,
            "start": self._start,
            "begin": lambda words: write_messages(self._network.begin(int(words[0]))),
            "deliver": self._deliver,
            "repeat": lambda _: write_messages(self._network.exchanges[self._last.to].arrive(self._last)),
            "forge": self._forge,
            "result": lambda words: write_slice(self._network.exchanges[int(words[0])].result()),
            "returned": lambda words: write_slice(self._network.exchanges[int(words[0])].returned()),
            "state": lambda _: self._state(),
        }
        return commands[command](words)

    def _bring(self, words: Sequence[str]) -> str:
        rank, _, *pairs = words
        assert int(rank) == len(self._slices)
        self._slices.append(read_slice(pairs))
        return "ok"

    def _start(self, words: Sequence[str]) -> str:
        algorithm, *rest = words
        options = parse_options(rest, {"elements": "", "k": "1"})
        elements, size = int(options["elements"]), len(self._slices)
        exchanges = [
            make_exchange(algorithm, own, rank=rank, size=size, elements=elements, k=int(options["k"]))
            for rank, own in enumerate(self._slices)
        ]
        self._network = Network(exchanges)
        return "ok"

    def _deliver(self, words: Sequence[str]) -> str:
        if words != ["all"]:
            sender, _, rank = words
            self._last = self._network.oldest(int(sender), int(rank))
            return write_messages(self._network.deliver(int(sender), int(rank)))
        sent: list[Message] = []
        while pairs := self._network.pairs():
            sent += self._network.deliver(*pairs[0])
        return write_messages(sent)

    def _forge(self, words: Sequence[str]) -> str:
        options = parse_options(words, {"from": "", "to": "", "round": "0", "range": "", "entries": ""})
        part = read_slice(options["entries"].split())
        start, stop = map(int, options["range"].split())
        receiver, sender, number = (int(options[key]) for key in ("to", "from", "round"))
        message = Message(receiver, sender, number, part.indices, part.values, start, stop)
        return write_messages(self._network.exchanges[receiver].arrive(message))

    def _state(self) -> str:
        lines = []
        for rank, exchange in enumerate(self._network.exchanges):
            awaited = ", ".join(map(str, exchange.awaited)) or "nobody"
            lines.append(f"rank {rank}: " + ("done" if exchange.done else f"awaits {awaited}"))
        return "\n".join(lines)


def read_slice(pairs: Sequence[str]) -> Slice:
    numbers = [pair.split(":") for pair in pairs]
    indices = np.array([int(index) for index, _ in numbers], dtype=np.int32)
    return Slice(indices, np.array([float(value) for _, value in numbers], dtype=np.float32))


def write_slice(part: Slice) -> str:
    return " ".join(f"{i}:{v:g}" for i, v in zip(part.indices, part.values, strict=True)) or "nothing"


def write_messages(messages: Sequence[Message]) -> str:
    lines = [
        f"{m.sender} to {m.to} in round {m.round}, [{m.start}, {m.stop}): {write_slice(m.slice)}" for m in messages
    ]
    return "\n".join(lines) or "sends nothing"


@pytest.mark.parametrize("path", scenario_paths("sparse_allreduce"), ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check_scenario(path, Interpreter())
