"""The benchmark that holds simulated steps against real ones: its runs, and its table."""

from __future__ import annotations

from benchmarks.base.machine import MACHINE, Processors
from benchmarks.planning.simulated import RUNS, Run, compared, table
from taihu.core.planner.profile import LayerCost, LinearCost, LinkCost, Profile

NOTHING = LinearCost(0.0, 0.0)
PROFILE = Profile(
    layers=(LayerCost("fc", 10_000, 0.02), LayerCost("conv", 90_000, 0.05)),
    forward_seconds=0.03,
    scan=NOTHING,
    top_k=NOTHING,
    link=LinkCost(2e-3, 2e-7, 2e-7),
    workers=2,
    servers=1,
)


def test_the_runs_are_of_all_kinds_and_have_the_profile_that_they_are_simulated_by() -> None:
    assert len(RUNS) >= 16
    names = [run.name for run in RUNS]
    assert len(set(names)) == len(names)
    for number, run in enumerate(RUNS):
        assert run.job().cluster.workers == run.workers
        assert run.whole.name in names[: number + 1]
    jobs = [run.job() for run in RUNS]
    assert {run.rate for run in RUNS} == {"100mbit", "1gbit", "10gbit"}
    assert {job.train.precision for job in jobs} >= {"fp32", "bf16"}
    assert {job.stage.key for job in jobs} >= {1, 3}
    assert {bool(job.servers) for job in jobs} == {True, False}
    assert {job.compression.method.key for job in jobs} == {"none", "dlgs"}
    assert {job.exchange.fc for job in jobs} == {"data", "shard"}
    assert {run.workers for run in RUNS} >= {2, 6}


def test_a_row_is_simulated_by_what_its_run_measured() -> None:
    run = Run("100mbit", 1, 2, "small", 16)
    assert run.name == RUNS[0].name
    step = {"min": 0.10, "median": 0.11, "max": 0.12}
    row = {"run": run.name, "seconds_per_step": step, "profile": PROFILE.to_json(), "disturbed": 0.012}
    machine = {
        "run": MACHINE,
        "alpha_seconds": 1e-3,
        "shared_cores": 2,
        "core_bytes_per_second": {"1gbit": 1e9, "10gbit": 1.0},
        "server_bytes_per_second": {"10gbit": 1.0, "1gbit": 1e9},
        "core_message_seconds": 0.0,
        "add_bytes_per_second": 1e10,
        "selected_value_seconds": 0.0,
        "compute_shares": {"small": 0.0},
    }
    _, shown = compared([machine, row])
    # Forward and backward, and at the server's port the exchange of the last layer of both workers behind them.
    behind = 2e-3 + 2 * 2 * 4 * 90_000 / (1e8 / 8 * 1448 / 1514)
    assert 0.1 + behind / 2 < shown["simulated"]["seconds_per_step"] < 0.1 + behind + 0.01
    (slower,) = compared([{**machine, "server_bytes_per_second": {"1gbit": 1e6, "10gbit": 1e9}}, row])[1:]
    assert slower["simulated"]["seconds_per_step"] > 2 * 2 * 2 * 4 * 100_000 / 2 / 1e6
    assert shown["deviation"] == shown["simulated"]["seconds_per_step"] / 0.11 - 1
    lines = table([shown, {"run": "of an older table", "seconds_per_step": step}]).splitlines()
    away = f"{abs(shown['deviation']):.1%}"
    assert lines[2].startswith(f"| 100mbit | 1 | {away} | {away} | 1+2, small, batch 16: 0.1100, 0.")
    assert lines[-1] == f"1 runs: median {abs(shown['deviation']):.1%}, at most {abs(shown['deviation']):.1%}."


def test_what_others_had_of_the_processors_is_a_share() -> None:
    processors = Processors()
    sum(range(3_000_000))
    assert 0.0 <= processors.disturbed() <= 1.0
