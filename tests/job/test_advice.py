"""Advice: a setting without effect is named, whatever set it; nothing else is."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.limits import most_files

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, job_to_toml, load_job, parse_assignments, setting_keys
from taihu.core.job.advice import RULES, advice
from taihu.core.job.machine import check_processes, check_threads
from taihu.core.model.run_length import RunLength

VALUES: dict[str, Any] = {
    "optimizer.momentum": 0.9,
    "optimizer.nesterov": True,
    "optimizer.beta1": 0.8,
    "optimizer.beta2": 0.8,
    "optimizer.epsilon": 1e-6,
    "optimizer.milestones": [5],
    "optimizer.milestone_epochs": [5],
    "optimizer.gamma": 0.5,
    "optimizer.decay_steps": 500,
    "optimizer.final_learning_rate": 0.001,
    "optimizer.clip": "whole",
    "train.epochs": 3,
    "checkpoint.every_seconds": 5.0,
    "train.recompute_segments": 3,
    "train.loss_scale": 1024,
    "train.loss_scale_growth_steps": 100,
    "data.path": "/data",
    "data.test_share": 0.5,
    "data.split_seed": 3,
    "data.sequence": 64,
    "data.target": "price",
    "data.task": "values",
    "data.drop": ["id"],
    "data.fill": ["mean"],
    "data.texts": ["zip"],
    "data.header": False,
    "data.encoding": "cp1252",
    "data.decimal": ",",
    "data.skip_bad": 3,
    "exchange.live_bytes": 1 << 20,
    "exchange.bucket_bytes": 1 << 20,
    "exchange.fc_scheme": "slices",
    "exchange.fc_update": "pass",
    "exchange.fc_inputs": "own",
    "exchange.replan_every": 50,
    "exchange.outer_learning_rate": 0.5,
    "exchange.outer_momentum": 0.5,
    "run.order": "order",
    "exchange.window_frames": 3,
    "exchange.frame_bytes": 8192,
    "compression.density": 0.5,
    "compression.refresh_every": 5,
    "compression.threshold_slack": 0.5,
    "compression.rank": 5,
    "compression.threshold": "group",
    "compression.factor_masking": True,
    "compression.density_warmup_steps": 5,
    "compression.clip_norm": 1.0,
    "compression.clip": "whole",
    "compression.value_type": "fp16",
    "compression.momentum_at": "servers",
    "compression.held_back_rises": "yes",
    "cluster.servers": 4,
    "cluster.core_groups": 2,
    "cluster.pace": 2.0,
}
# For each rule, settings beside which its keys are idle, and such beside which they are not.
CASES: list[tuple[list[str], list[str]]] = [
    (["optimizer.name=adam"], []),
    ([], ["optimizer.name=adam"]),
    ([], ["optimizer.schedule=step", "optimizer.milestones=[7]"]),
    (["optimizer.schedule=step", "optimizer.milestones=[7]"], ["optimizer.schedule=cosine"]),
    ([], ["optimizer.clip_norm=1.0", "exchange.kind=ring"]),
    (["train.steps=50"], []),
    (["checkpoint.every_steps=50"], []),
    ([], ["train.recompute=spill"]),
    (["train.precision=bf16"], ["train.precision=fp16"]),
    (["data.name=digits"], ["data.name=cifar10"]),
    (["data.name=python-source"], ["data.name=fashion-mnist"]),
    (["data.name=synthetic:3x8x8"], ["data.name=fashion-mnist"]),
    (["data.name=cifar10"], ["data.name=./mine"]),
    (["data.name=mine.csv"], ["data.name=mine.py:load"]),
    (["data.name=mine.npz"], ["data.name=mine.csv"]),
    (["data.name=mine.npz"], ["data.name=./mine"]),
    (["data.name=mine.txt"], ["data.name=mine.csv"]),
    (["data.name=mine.npz"], ["data.name=python-source"]),
    (["exchange.zero=2"], ["exchange.zero=3"]),
    (["exchange.zero=1"], ["exchange.fc=shard"]),
    ([], ["exchange.fc=shard"]),
    (["exchange.plan=single"], ["exchange.plan=greedy"]),
    ([], ["exchange.local_steps=4"]),
    (["exchange.consistency=ssp:0"], ["exchange.consistency=async"]),
    (["exchange.kind=ring"], []),
    (["exchange.kind=ring"], []),
    ([], ["compression.method=dlgs", "compression.downlink=dense", "compression.clip_norm=1"]),
    (
        ["compression.method=quantized", "compression.value_type=int4"],
        ["compression.method=dlgs", "compression.downlink=dense"],
    ),
    (["compression.method=dlgs"], ["compression.method=powersgd"]),
    (["compression.method=dlgs", "exchange.local_steps=4"], ["compression.method=dlgs"]),
    (["compression.method=dlgs"], ["compression.method=dlgs", "compression.clip_norm=1"]),
    (["compression.method=lags"], ["compression.method=dlgs"]),
    (
        ["compression.method=dlgs", "optimizer.momentum=0"],
        ["compression.method=dlgs", "compression.downlink=dense"],
    ),
    (["exchange.kind=ring"], []),
    ([], ["cluster.compute=sw26010"]),
]
PAIRS = [(rule, key, case) for rule, case in zip(RULES, CASES, strict=True) for key in rule.keys.split()]


def job_of(assignments: list[str], key: str = "") -> Job | None:
    """The job, None where the key is refused beside the others."""
    section, _, name = key.partition(".")
    given = {section: {name: VALUES[key]}} if key else {}
    try:
        return load_job(None, given, parse_assignments(assignments))
    except ConfigError:
        return None


def test_every_key_of_the_table_is_tried() -> None:
    assert {key for rule in RULES for key in rule.keys.split()} == set(VALUES)
    assert set(VALUES) <= set(setting_keys())


@pytest.mark.parametrize(("rule", "key", "case"), PAIRS, ids=lambda each: each if isinstance(each, str) else "")
def test_a_key_is_idle_beside_what_its_rule_says_and_not_beside_others(rule: Any, key: str, case: Any) -> None:
    idle_beside, used_beside = case
    idle, used = job_of(idle_beside, key), job_of(used_beside, key)
    refused = "optimizer.nesterov" if rule is RULES[0] else None
    if key == refused:
        assert idle is None  # that is an error, not only idle
        return
    assert idle is not None
    said = [line for line in advice(idle) if line.startswith(f"{key} = ")]
    assert said
    assert all("has no effect: it " in line for line in said)
    assert any(rule.because in line for line in said)
    if used is not None:
        assert not [line for line in advice(used) if line.startswith(f"{key} = ")]
    without = job_of(idle_beside)
    assert without is not None
    assert not [line for line in advice(without) if line.startswith(f"{key} = ")] or key in {
        assignment.partition("=")[0] for assignment in idle_beside
    }


def test_nothing_is_said_of_the_default_job_nor_of_what_switches_off() -> None:
    assert advice(Job()) == ()
    off = ["optimizer.name=adam", "optimizer.momentum=0", "optimizer.nesterov=false", "exchange.live_bytes=0"]
    assert advice(load_job(None, parse_assignments([*off, "data.task=auto", "compression.momentum_at=auto"]))) == ()


@pytest.mark.parametrize(
    ("given", "momentum", "rate", "words"),
    [
        (
            [],
            0.0,
            0.25,
            "optimizer.momentum 0.9 is not applied: .*the learning rate is 0.25 in place of 0.05; .*'workers'",
        ),
        (["optimizer.momentum=0.3"], 0.0, 0.05, "optimizer.momentum 0.3 is not applied: .* as momentum; comp"),
        (["compression.downlink=dense"], 0.0, 0.25, "compression.momentum_at = 'servers' applies it"),
        (["compression.momentum_at=none"], 0.0, 0.25, None),
        (["compression.momentum_at=workers"], 0.9, 0.05, None),
        (["compression.density=0.06"], 0.9, 0.05, None),
        (["compression.density=0.05"], 0.0, 0.25, "is not applied"),
        (["compression.factor_masking=true"], 0.9, 0.05, None),
        (["exchange.returns=gradients"], 0.9, 0.05, None),
        (["optimizer.momentum=0"], 0.0, 0.05, None),
        (["compression.method=none"], 0.9, 0.05, None),
    ],
)
def test_momentum_behind_a_selection_is_not_applied_and_told(
    given: list[str], momentum: float, rate: float, words: str | None
) -> None:
    job = load_job(None, parse_assignments(["compression.method=dlgs", *given]))
    applied, said = job.applied_optimizer, [line for line in advice(job) if "is not applied" in line]
    assert applied.momentum == momentum
    assert applied.learning_rate == pytest.approx(rate)
    assert len(said) == (words is not None)
    assert words is None or re.search(words, said[0])


def test_of_adam_the_newest_gradient_alone_counts() -> None:
    job = load_job(None, parse_assignments(["compression.method=dlgs", "optimizer.name=adamw"]))
    assert (job.applied_optimizer.beta1, job.applied_optimizer.beta2) == (0.0, 0.999)
    assert job.applied_optimizer.learning_rate == job.optimizer.learning_rate
    assert [line for line in advice(job) if line.startswith("optimizer.beta1 0.9 is not applied")]


@pytest.mark.parametrize(("density", "beta1"), [(0.1, 0.0), (0.11, 0.9)])
def test_beta1_is_left_out_up_to_a_tenth(density: float, beta1: float) -> None:
    given = ["compression.method=dlgs", f"compression.density={density}", "optimizer.name=adam"]
    assert load_job(None, parse_assignments(given)).applied_optimizer.beta1 == beta1


def test_only_what_was_given_is_written_for_others_to_read() -> None:
    job = load_job(None, {"optimizer": {"name": "adam"}, "train": {"steps": 5}})
    assert job_to_toml(job, given=True) == '\n[train]\nsteps = 5\n\n[optimizer]\nname = "adam"\n'


@pytest.mark.parametrize(
    ("assignments", "length", "words"),
    [
        (["schedule=cosine", "decay_steps=50"], RunLength(9, 7, 70), "the learning rate is 0 from step 51 on"),
        (
            ["schedule=cosine", "decay_steps=69"],
            RunLength(9, 7, 70),
            "0 from step 70 on, the run ends at 70",
        ),
        (["schedule=cosine", "decay_steps=70"], RunLength(9, 7, 70), None),
        (["schedule=cosine", "decay_steps=50", "final_learning_rate=0.01"], RunLength(9, 7, 70), None),
        (["schedule=cosine"], RunLength(9, 7, 70), None),
        (["schedule=cosine", "decay_steps=50"], None, None),
        (["schedule=step", "milestones=[20, 80]"], RunLength(9, 7, 70), "milestone 80 is not before the run's end"),
        (["schedule=step", "milestone_epochs=[5, 10]"], RunLength(9, 7, 70), "milestone 70 is not before"),
        (["schedule=step", "milestone_epochs=[5, 9]"], RunLength(9, 7, 70), None),
        (["warmup_steps=71"], RunLength(9, 7, 70), "warm-up ends at step 71, the run at 70"),
        (["warmup_epochs=11"], RunLength(9, 7, 70), "warm-up ends at step 77"),
        (["warmup_epochs=11"], None, None),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_told(
    assignments: list[str], length: RunLength | None, words: str | None
) -> None:
    job = load_job(None, parse_assignments(f"optimizer.{each}" for each in assignments))
    said = advice(job, length)
    assert (words is None and not said) or (words is not None and len(said) == 1 and words in said[0]), said


def test_steps_that_are_given_are_a_length() -> None:
    job = load_job(None, {"train": {"steps": 60}, "optimizer": {"schedule": "cosine", "decay_steps": 9}})
    assert "from step 10 on, the run ends at 60" in advice(job)[0]


@pytest.mark.parametrize(("threads", "fits"), [(0, True), (8, True), (9, False), (4096, False)])
def test_threads_are_at_most_four_a_core(threads: int, fits: bool) -> None:
    job = load_job(None, {"cluster": {"threads": threads}})
    if fits:
        check_threads(job, cores=2)
    else:
        with pytest.raises(ConfigError, match=r"cluster\.threads: expected at most 8, .* 2 cores, got"):
            check_threads(job, cores=2)


@pytest.mark.parametrize(("workers", "cores", "fits"), [(62, 1, True), (63, 1, False), (78, 5, True), (79, 5, False)])
def test_one_machine_starts_so_many_processes_and_no_more(workers: int, cores: int, fits: bool) -> None:
    job = load_job(None, {"cluster": {"workers": workers}})
    if fits:
        check_processes(job, cores=cores)
    else:
        with pytest.raises(ConfigError, match=f"2 servers and {workers} workers"):
            check_processes(job, cores=cores)


def test_one_machine_starts_no_more_processes_than_it_has_files_for() -> None:
    with most_files(100):
        check_processes(load_job(None, {"cluster": {"workers": 20}}), cores=8)
        with pytest.raises(ConfigError, match=r"^cluster: 62 processes .* may open 100; ulimit -n 1024 raises that$"):
            check_processes(load_job(None, {"cluster": {"workers": 60}}), cores=8)
