"""The flags that set keys of the job: the same at every command that takes a job, with key and default in help."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from taihu.cli.node import node
from taihu.cli.train import train
from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, load_job
from taihu.core.job.flags import JobFlags, takes_options
from taihu.core.process.entry import run_app
from taihu.core.traits.registry import Variant
from taihu.ps_server.command import server
from taihu.worker.command import worker

ROLES = {"train": train, "worker": worker, "server": server, "node": node}

# Each flag, a value other than the key's default, and the key.
GIVEN: list[tuple[str, Any, str]] = [
    ("servers", 5, "cluster.servers"),
    ("workers", 6, "cluster.workers"),
    ("exchange", "ring", "exchange.kind"),
    ("model", "resnet20", "model.name"),
    ("data", "cifar10", "data.name"),
    ("data_path", Path("here"), "data.path"),
    ("batch", 7, "train.batch"),
    ("epochs", 8, "train.epochs"),
    ("steps", 9, "train.steps"),
    ("check_every", 11, "train.check_every"),
    ("optimizer", "adam", "optimizer.name"),
    ("lr", 0.125, "optimizer.learning_rate"),
    ("seed", 10, "train.seed"),
    ("compression", "topk", "compression.method"),
    ("density", 0.5, "compression.density"),
    ("plan", "single", "exchange.plan"),
    ("fc", "auto", "exchange.fc"),
    ("consistency", "async", "exchange.consistency"),
    ("zero", 1, "exchange.zero"),
    ("precision", "bf16", "train.precision"),
    ("compute", "sw26010", "cluster.compute"),
    ("init_from", Path("a.safetensors"), "model.init_from"),
    ("name", "mine", "name"),
]


def at(job: Job, key: str) -> object:
    section, _, name = key.rpartition(".")
    value = getattr(getattr(job, section) if section else job, name)
    return value.key if isinstance(value, Variant) else value


def run(function: Any, *arguments: str) -> int:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    with pytest.raises(SystemExit) as ended:
        run_app(app, arguments)
    return int(str(ended.value.code))


def test_every_flag_is_in_the_table() -> None:
    assert {name for name, _, _ in GIVEN} >= {field.name for field in fields(JobFlags)} - {"assignments"}


@pytest.mark.parametrize(("flag", "value", "key"), GIVEN)
def test_a_flag_sets_its_key_and_wins_over_set(flag: str, value: Any, key: str) -> None:
    assert at(Job(), key) != value
    assigned = [f"{key}=1"]
    assert at(load_job(None, JobFlags(**{flag: value, "assignments": assigned}).overrides()), key) == value


@pytest.mark.parametrize("function", ROLES.values(), ids=ROLES)
def test_every_command_with_a_job_takes_all_flags(function: Any) -> None:
    app = typer.Typer()
    app.command()(function)
    options = {option for parameter in get_command(app).params for option in parameter.opts}
    assert options >= {f"--{field.name.replace('_', '-')}" for field in fields(JobFlags)} - {"--assignments"} | {
        "--set"
    }


@pytest.mark.parametrize("flag", ["batch", "zero", "steps", "name"])
def test_help_names_key_and_default(flag: str) -> None:
    app = typer.Typer()
    app.command()(train)
    command = get_command(app)
    option = next(parameter for parameter in command.params if parameter.name == flag)
    said = {
        "batch": "(train.batch: 32)",
        "zero": "(exchange.zero: 1 with servers, 0 in a ring)",
        "steps": "(train.steps: as many as the epochs have)",
        "name": "(name: taihu)",
    }
    record = option.get_help_record(command.make_context("train", []))
    assert record is not None
    assert f"[default: {said[flag]}" in record[1]


def test_a_command_gets_its_own_parameters_and_the_flags_that_were_given() -> None:
    seen: list[tuple[object, JobFlags]] = []

    @takes_options
    def command(own: int = 3, *, flags: JobFlags) -> None:
        seen.append((own, flags))

    assert run(command, "--own", "4", "--lr", "0.5", "--set", "train.batch=8", "--name", "a") == 0
    assert seen == [(4, JobFlags(lr=0.5, assignments=["train.batch=8"], name="a"))]
    assert seen[0][1].given() == {"--lr": 0.5, "--set": ["train.batch=8"], "--name": "a"}
    assert list(inspect.signature(command).parameters)[:2] == ["own", "servers"]


def test_the_name_of_a_job_can_be_assigned_and_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert JobFlags(assignments=["name=other"]).resolve(None).name == "other"
    monkeypatch.setenv("TAIHU_NAME", "elsewhere")
    assert JobFlags().resolve(None).name == "elsewhere"
    assert JobFlags(name="flag").resolve(None).name == "flag"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (JobFlags(density=0.5), "--density 0.5: nothing is compressed"),
        (JobFlags(servers=2, exchange="ring"), "--servers 2: workers in a ring have no servers"),
    ],
)
def test_a_flag_without_effect_is_refused(flags: JobFlags, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        flags.resolve(None)


def test_the_coordinator_wins_over_what_was_assigned() -> None:
    flags = JobFlags(assignments=["cluster.coordinator=a:1"])
    assert flags.resolve(None).cluster.coordinator == "a:1"
    assert flags.resolve(None, {"cluster": {"coordinator": "b:2"}}).cluster.coordinator == "b:2"
