"""`taihu run` as an operator sees it: the script's own output, the run's folder, its report, trace and metrics."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from support.daemons import free_port
from support.torch_scripts import taihu_run

from taihu.report.page import page_of
from taihu.report.reading import read_run

STEPS = 12


@pytest.mark.parametrize("update", ["workers", "servers"])
def test_what_stays_of_a_script_and_what_is_seen_of_it(update: str, tmp_path: Path) -> None:
    flags = () if update == "workers" else ("--no-fork", "--servers", "1", "--compression", "dlgs")
    port = free_port()
    told = ("--metrics-port", str(port), "--run-dir", "kept", "--trace", "trace.json", "--json", "out.json")
    own = ("--set", "exchange.calibration_steps=4")
    done = taihu_run(tmp_path, *flags, *told, *own, script="told.py", arguments=(update, str(port)), workers=2)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "rank 0 begins\nrank 0 ends\n"
    assert "run folder      kept" in done.stderr
    assert f" s: {STEPS} steps\n" in done.stderr
    assert "loss" not in done.stderr

    results = json.loads((tmp_path / "kept" / "results.json").read_text())
    assert results == json.loads((tmp_path / "out.json").read_text())
    assert (results["steps"], results["workers"], results["script"]) == (STEPS, 2, "told.py")
    assert results["final_loss"] is None
    assert (results["compression"], results["downlink"]) == ("none" if update == "workers" else "dlgs", "dense")
    assert results["servers"] == (1 if "--servers" in flags else 0)
    assert [row["rank"] for row in results["by_rank"]] == [0, 1]
    with (tmp_path / "kept" / "steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    assert {row["worker_0_loss"] for row in rows} == {row["epoch"] for row in rows} == {""}
    assert all(float(row["step_seconds"]) > 0 and int(row["sent_bytes"]) > 0 for row in rows[1:])

    events = [json.loads(line) for line in (tmp_path / "kept" / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in (events[0], events[-1])] == ["training", "finished"]
    assert "planned" in {event["event"] for event in events}
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {(event["cat"], event["name"]) for event in trace if event.get("ph") == "X"}
    assert {("compute", "forward"), ("compute", "backward"), ("compute", "wait")} <= names
    assert {name for _, name in names} & {"allreduce", "push"}

    page = page_of(read_run(tmp_path / "kept"))
    assert "told.py" in page
    assert "Finished after 12 steps" in page
    assert "Time of a step, over the run" in page
    assert "final loss" not in page
    assert "small_cnn" not in page
    for rank in range(2):
        metrics = (tmp_path / f"metrics.{rank}").read_text()
        assert f'taihu_step{{rank="{rank}",role="worker"}} {STEPS:.1f}' in metrics
    assert "the run's token is missing" in (tmp_path / "refused").read_text()
    assert (tmp_path / "members").read_text() == ("3" if "--servers" in flags else "2")
    if "--servers" not in flags:  # worker 0 hosts the coordinator then
        refused = 'method="/taihu.v1.CoordinatorService/GetStatus",rank="0",reason="no_token",role="worker"'
        assert f"taihu_refused_calls_total{{{refused}}} 1.0" in (tmp_path / "metrics.0").read_text()


def test_forked_workers_draw_numbers_of_their_own_and_keep_to_their_threads(tmp_path: Path) -> None:
    done = taihu_run(tmp_path, "--run-dir", "none", "--quiet", script="told.py", workers=2)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "runs").exists()
    (first, *one), (second, *other) = ((tmp_path / f"drawn.{rank}").read_text().split() for rank in range(2))
    assert first != second
    assert one[0] != other[0]
    assert one[1] == other[1] == "1"


PLAIN = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.ones(1)
dist.all_reduce(tensor)
print("hello", tensor.tolist())
"""
BOTH = """
import os
import torch
import torch.distributed as dist
import taihu.torch
dist.init_process_group("taihu")
model = torch.nn.Linear(2, 1)
optimizer = taihu.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
optimizer.zero_grad()
model(torch.full((1, 2), 1.0 + dist.get_rank())).sum().backward()
optimizer.step()
gradients = [torch.zeros(1, 2) for _ in range(dist.get_world_size())]
dist.all_gather(gradients, model.weight.grad)
dist.destroy_process_group()
dist.init_process_group("taihu")
print(torch.cat(gradients).tolist(), dist.get_rank() == taihu.torch.rank() == int(os.environ["LOCAL_RANK"]))
"""


def test_a_script_uses_torch_distributed_beside_the_optimizer(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text(BOTH)
    done = taihu_run(tmp_path, "--quiet", script=str(tmp_path / "both.py"), workers=2)
    assert (done.returncode, done.stdout) == (0, "[[1.5, 1.5], [1.5, 1.5]] True\n"), done.stderr


@pytest.mark.parametrize("flags", [(), ("--servers", "1")], ids=" ".join)
def test_a_script_that_does_not_use_taihu_ends_well_and_that_is_said(flags: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN)
    done = taihu_run(tmp_path, "--quiet", *flags, script=str(tmp_path / "plain.py"), workers=2)
    assert (done.returncode, done.stdout) == (0, "hello [2.0]\n")
    assert done.stderr.splitlines() == [
        "warning: plain.py has not used taihu.torch: taihu has exchanged nothing for it; see docs/torch.md"
    ]
