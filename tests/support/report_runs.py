"""Runs for reports: folders as `taihu train` leaves them, of numbers made up by a formula; and pages taken apart."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from taihu.core.trace.merging import trace_of
from taihu.core.trace.parts import Event, TracePart

__all__ = ["PARTS", "Page", "made_results", "made_trace", "parse_value", "spread_of", "write_run"]

LAYERS = (("fc2", 650, 0.0008), ("fc1", 32832, 0.0007), ("conv2", 4640, 0.0016), ("conv1", 160, 0.002))
GROUPS = ((0, 1), (2, 3))
PARTS = ("compute", "compress", "compress_wait", "exchange", "wait")
STEP_NAMES = (
    *("step", "epoch", "worker_0_loss", "learning_rate", "step_seconds", "compute_seconds", "compress_seconds"),
    *("compress_wait_seconds", "exchange_seconds", "wait_seconds", "sent_bytes", "received_bytes", "selected_ratio"),
    "loss_scale",
)
_VOID = {"meta", "br", "hr", "img", "input", "link"}
_SIZES = {
    "TB": 1e12,
    "GB": 1e9,
    "MB": 1e6,
    "kB": 1e3,
    "B": 1.0,
    "s": 1.0,
    "ms": 1e-3,
    "µs": 1e-6,
    "ns": 1e-9,
    "%": 1e-2,
}


def spread_of(value: float) -> dict[str, float]:
    return {"min": 0.5 * value, "median": value, "max": 2.0 * value}


def made_results(workers: int = 3) -> dict[str, Any]:
    """Results of a compressed run whose worker r computes in 8 + r milliseconds."""
    by_rank = [
        {
            "rank": rank,
            "final_loss": 0.1,
            "bytes_sent_per_step": 150_000 + rank,
            "bytes_received_per_step": 160_000 + rank,
            **{f"seconds_{name}": spread_of((8 + rank) / 1e3 / place) for place, name in enumerate(PARTS, 1)},
            "seconds_per_step": spread_of(0.013),
        }
        for rank in range(workers)
    ]
    units = [
        {"name": name, "elements": count, "updates": 9, "refreshes": 4, "median_drift": 0.05, "largest_drift": 0.3}
        for name, count, _ in LAYERS
    ]
    return {
        "format": "taihu results 1",
        "test_accuracy": 0.97,
        "final_loss": 0.125,
        "steps": 40,
        "total_steps": 40,
        "stopped": False,
        "servers": 2,
        "workers": workers,
        "exchange": "server",
        "compression": "dlgs",
        "density": 0.1,
        "refresh_every": 32,
        "threshold": "layer",
        "downlink": "exact",
        "precision": "fp32",
        **{name: value for name, value in by_rank[0].items() if name.startswith("seconds_")},
        "bytes_sent_per_step": 460_296,
        "bytes_received_per_step": 480_000,
        "predicted_seconds_per_step": 0.0114,
        "group_layers": [list(group) for group in GROUPS],
        "frame_bytes": 1 << 19,
        "profile": {
            "layers": [{"name": name, "elements": count, "backward_seconds": at} for name, count, at in LAYERS],
            "forward_seconds": 0.0039,
            "scan": {"base_seconds": 1e-5, "seconds_per_element": 1e-9},
            "top_k": {"base_seconds": 2e-5, "seconds_per_element": 5e-9},
            "link": {"alpha_seconds": 0.002, "up_seconds_per_byte": 1e-8, "down_seconds_per_byte": 2e-8},
            "workers": workers,
            "servers": 2,
        },
        "thresholds": {
            "selected_per_kept": {"min": 0.7, "median": 1.0, "max": 1.2},
            "refreshes": {
                "every": 1,
                "step": [2, 2, 9],
                "unit": [0, 1, 0],
                "age": [1, 1, 7],
                "drift": [0.7, 0.5, 0.1],
            },
            "units": [{**unit, "selected_per_kept": 0.98} for unit in units],
        },
        "memory": [
            {
                "process": "worker 0",
                "planned": {"parameters": 153_128, "gradients": 153_128, "activations": 700_000},
                "before_bytes": 90_000_000,
                "peak_bytes": 92_500_000,
            },
            {"process": "server 0", "planned": {"parameters": 76_564, "optimizer": 76_564}},
        ],
        "evaluations": [],
        "by_rank": by_rank,
    }


def step_rows(count: int) -> list[dict[str, float]]:
    return [
        {
            "step": step,
            "epoch": 1 + step // 14,
            "worker_0_loss": 2.3 / step,
            "learning_rate": 0.05 - step / 1e4,
            "step_seconds": 0.25 if step == 1 else 0.013,
            "compute_seconds": 0.24 if step == 1 else 0.008,
            "compress_seconds": 0.001,
            "compress_wait_seconds": 0.0005,
            "exchange_seconds": 0.01 + step / 1e6,
            "wait_seconds": 0.01 if step == 1 else 0.005,
            "sent_bytes": 15_000 + step,
            "received_bytes": 16_000,
            "selected_ratio": 0.1,
            "loss_scale": 1.0,
        }
        for step in range(1, count + 1)
    ]


def write_run(folder: Path, results: dict[str, Any] | None = None, steps: int = 40) -> Path:
    """A run's folder; without results, of a run that goes on or failed."""
    folder.mkdir(parents=True, exist_ok=True)
    if results is not None:
        (folder / "results.json").write_text(json.dumps(results))
    with (folder / "steps.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, STEP_NAMES)
        table.writeheader()
        table.writerows(step_rows(steps))
    tests = ["epoch,step,seconds,train_loss,test_loss,test_accuracy"]
    tests += [f"{epoch},{14 * epoch},0.01,{1 / epoch},{1.5 / epoch},{1 - 0.1 / epoch}" for epoch in (1, 2)]
    (folder / "epochs.csv").write_text("\n".join(tests) + "\n")
    job = '[model]\nname = "small_cnn"\n[data]\nname = "digits"\n[train]\nbatch = 32\n[cluster]\nworkers = 3\n'
    (folder / "settings.toml").write_text(job)
    events = [
        {
            "time": "2026-07-28T12:00:05+00:00",
            "step": 8,
            "event": "planned",
            "version": 2,
            "predicted_seconds": 0.0114,
        },
        {"time": "2026-07-28T12:00:09+00:00", "step": 40, "event": "finished"},
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def made_trace(steps: int = 5) -> dict[str, Any]:
    """A trace of a worker and a server, each step 10 ms longer than the one before."""
    worker, server, now = [], [], 0
    for step in range(1, steps + 1):
        length = (10 + 10 * step) * 10**6
        worker.append(Event("compute", "forward", now, now + length // 4, step, None, None))
        worker.append(Event("compute", "backward", now + length // 4, now + length, step, None, None))
        worker.append(Event("push server 0", "push", now + length // 2, now + length, step, 0, 0))
        server.append(Event("update", "update", now + length, now + length + 10**6, step, 0, None))
        now += length
    return trace_of(
        [TracePart(0, "server 0", 0, 0.0, tuple(server)), TracePart(1, "worker 0", 0, None, tuple(worker))]
    )


@dataclass
class Element:
    """An element of a page, with its text and the elements in it."""

    tag: str
    attributes: dict[str, str]
    inside: list[Element] = field(default_factory=list)
    text: str = ""

    def all(self, tag: str) -> list[Element]:
        """Elements of a kind within, in their order."""
        found = [self] if self.tag == tag else []
        return found + [each for part in self.inside for each in part.all(tag)]

    @property
    def whole_text(self) -> str:
        return self.text + "".join(part.whole_text for part in self.inside)


class Page(HTMLParser):
    """A page taken apart by the standard library's parser, which is no code of the report's."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.root = Element("root", {})
        self.unbalanced: list[str] = []
        self._open = [self.root]
        self.feed(html)
        self.close()
        self.unbalanced += [element.tag for element in self._open[1:]]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].inside.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].inside.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if self._open[-1].tag == tag:
            self._open.pop()
        else:
            self.unbalanced.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        self._open[-1].text += data

    @property
    def elements(self) -> list[Element]:
        """All of them."""
        found, left = [], [self.root]
        while left:
            found.append(left.pop())
            left += found[-1].inside
        return found

    def figure(self, title: str) -> Element:
        """The figure of this title."""
        return next(each for each in self.root.all("figure") if each.all("h3")[0].whole_text == title)

    def titles(self) -> list[str]:
        return [each.whole_text for each in self.root.all("h3")]

    def rows(self, title: str) -> list[dict[str, str]]:
        """The values behind a figure."""
        (table,) = self.figure(title).all("table")
        head = [cell.whole_text for cell in table.all("th")]
        return [
            dict(zip(head, [cell.whole_text for cell in row.all("td")], strict=True))
            for row in table.all("tbody")[0].all("tr")
        ]


def parse_value(text: str) -> float:
    """The number that a cell tells, with its unit."""
    found = re.fullmatch(r"(-?[\d,.]+(?:e[+-]?\d+)?)(?:\s(\D+))?", text)
    assert found is not None, text
    return float(found[1].replace(",", "")) * _SIZES[found[2]] if found[2] else float(found[1].replace(",", ""))
