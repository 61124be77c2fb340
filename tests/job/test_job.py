"""Job files: what is written is read back, and what is wrong is said in one line."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from support.strategies import CHARACTERS

from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, job_to_toml, load_job, parse_assignments, parse_value
from taihu.core.model.names import MODEL_NAMES
from taihu.core.settings import (
    ChaosSettings,
    CheckpointSettings,
    ClusterSettings,
    CompressionSettings,
    DataSettings,
    ExchangeSettings,
    ModelSettings,
    OptimizerSettings,
    RunSettings,
    SecuritySettings,
    TrainSettings,
)
from taihu.core.traits.registry import Variant

quick = settings(deadline=None)

Tables = dict[str, Any]

SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSettings,
    "data": DataSettings,
    "train": TrainSettings,
    "optimizer": OptimizerSettings,
    "exchange": ExchangeSettings,
    "compression": CompressionSettings,
    "cluster": ClusterSettings,
    "run": RunSettings,
    "checkpoint": CheckpointSettings,
    "chaos": ChaosSettings,
    "security": SecuritySettings,
}
KEYS = [(section, key) for section, model in SECTIONS.items() for key in model.model_fields]

TEXT = st.text(CHARACTERS, max_size=20)
COUNT = st.integers(1, 10**9)
WHOLE = st.integers(0, 10**9)
MANY = st.integers(1, 10**5)
RATE = st.floats(0, 10_000, exclude_min=True)
SECONDS = st.floats(1e-3, 86_400) | st.integers(1, 86_400)
FRACTION = st.floats(0, 1, exclude_max=True)

VALUES: dict[str, dict[str, st.SearchStrategy[object]]] = {
    "model": {
        "name": st.sampled_from(MODEL_NAMES) | TEXT.map("{}:build".format),
        "init_from": TEXT,
        "init_skip": st.lists(TEXT, max_size=2),
    },
    "data": {
        "name": st.sampled_from(["digits", "cifar10", "synthetic:3x8x8:classes=4", "mine.npz", "./pictures"]),
        "path": TEXT,
        "augment": st.sampled_from(["none", "flip", "crop-flip"]),
        "resize": st.builds("{}x{}".format, st.integers(1, 9999), st.integers(1, 9999)),
        "normalise": st.sampled_from(["auto", "none"]),
        "test_share": st.floats(0, 1, exclude_min=True, exclude_max=True),
        "split_seed": st.integers(0, 2**63 - 1),
        "target": TEXT,
        "sequence": st.integers(1, 65536),
        "task": st.sampled_from(["auto", "classes", "values"]),
        "drop": st.lists(TEXT, max_size=2),
        "fill": st.sampled_from([["mean"], ["median", "a=most"], ["0"], []]),
        "texts": st.lists(TEXT, max_size=2),
        "header": st.booleans(),
        "encoding": st.sampled_from(["cp1252", "utf-16"]),
        "decimal": st.sampled_from(["auto", ".", ","]),
        "skip_bad": st.integers(0, 10**9),
    },
    "train": {
        "batch": MANY,
        "epochs": MANY,
        "steps": COUNT,
        "seed": st.integers(0, 2**63 - 1),
        "check_every": COUNT,
        "evaluate": st.booleans(),
        "loss": st.sampled_from(["auto", "cross-entropy", "mse", "bce"]),
        "label_smoothing": FRACTION,
        "recompute": st.sampled_from(["none", "memory", "spill"]),
        "recompute_segments": MANY,
        "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
        "loss_scale": st.integers(0, 32).map(lambda power: 2.0**power),
        "loss_scale_growth_steps": COUNT,
    },
    "optimizer": {
        "name": st.sampled_from(["sgd", "adam", "adamw"]),
        "learning_rate": RATE,
        "momentum": FRACTION,
        "nesterov": st.booleans(),
        "weight_decay": st.floats(0, 100),
        "beta1": FRACTION,
        "beta2": FRACTION,
        "epsilon": st.floats(1e-30, 1),
        "clip_norm": st.floats(0, 1e9, exclude_min=True),
        "clip": st.sampled_from(["layer", "whole"]),
        "clip_value": st.floats(0, 1e9, exclude_min=True),
        "schedule": st.sampled_from(["constant", "step", "cosine"]),
        "milestones": st.lists(COUNT, max_size=4),
        "milestone_epochs": st.lists(st.floats(0, 10**6, exclude_min=True), max_size=4),
        "gamma": st.floats(0, 10, exclude_min=True),
        "decay_steps": COUNT,
        "final_learning_rate": st.floats(0, 10_000),
        "warmup_steps": WHOLE,
        "warmup_epochs": st.floats(0, 10**6),
    },
    "exchange": {
        "kind": st.sampled_from(["server", "ring"]),
        "transport": st.sampled_from(["auto", "tcp", "same-host", "grpc"]),
        "fc": st.sampled_from(["auto", "data", "shard"]),
        "fc_scheme": st.sampled_from(["gather", "turns", "slices"]),
        "fc_update": st.sampled_from(["step", "pass"]),
        "fc_inputs": st.sampled_from(["all", "own", "spilled"]),
        "zero": st.integers(0, 3),
        "local_steps": st.integers(1, 10_000),
        "consistency": st.sampled_from(["bsp", "ssp:0", "ssp:3", "async", "bsp:N-1"]),
        "outer_learning_rate": st.floats(1e-9, 100),
        "outer_momentum": st.floats(0, 0.999),
        "bucket_bytes": st.integers(4096, 10**12),
        "live_bytes": st.just(0) | st.integers(4096, 10**12),
        "plan": st.sampled_from(["auto", "greedy", "exact", "per-layer", "single", "bucket:0.5kB", "bucket:1GB"]),
        "calibration_steps": st.integers(4, 10**4),
        "replan_every": COUNT,
        "frame_bytes": st.integers(1024, 1 << 20).map(lambda values: 4 * values),
        "returns": st.sampled_from(["parameters", "gradients", "script"]),
        "window_frames": st.integers(1, 1024),
        "timeout_s": SECONDS,
        "non_finite": st.sampled_from(["error", "allow"]),
    },
    "compression": {
        "method": st.sampled_from(["none", "topk", "lags", "dlgs", "quantized"]),
        "density": st.floats(1e-9, 1),
        "threshold": st.sampled_from(["layer", "group"]),
        "refresh_every": COUNT,
        "threshold_slack": st.floats(0, 1000) | st.just("none"),
        "rank": st.integers(1, 64),
        "value_type": st.sampled_from(["fp32", "fp16", "bf16", "int8", "int4", "int2"]),
        "downlink": st.sampled_from(["auto", "dense", "exact", "doublesqueeze"]),
        "downlink_value_type": st.sampled_from(["fp32", "int8", "int4", "int2"]),
        "momentum_at": st.sampled_from(["auto", "none", "workers", "servers"]),
        "held_back_rises": st.sampled_from(["auto", "no", "yes"]),
        "factor_masking": st.booleans(),
        "density_warmup_steps": WHOLE,
        "clip_norm": st.floats(0, 1e9, exclude_min=True),
        "clip": st.sampled_from(["unit", "whole"]),
    },
    "cluster": {
        "servers": st.integers(1, 10**4),
        "workers": st.integers(1, 10**4),
        "coordinator": st.from_regex(
            r"([a-z][a-z0-9.-]{0,20}|\[[0-9a-f:]{2,9}\]):[0-9]{1,4}", alphabet=CHARACTERS, fullmatch=True
        ),
        "connect_timeout_s": SECONDS,
        "heartbeat_s": st.floats(0.01, 3600),
        "min_agents": st.integers(1, 10_000),
        "lost_after_s": SECONDS,
        "threads": st.integers(0, 4096),
        "reflection": st.booleans(),
        "compute": st.sampled_from(["cpu", "sw26010"]),
        "core_groups": st.integers(1, 4),
        "pace": st.none() | st.floats(0, 1e6, exclude_min=True),
    },
    "run": {
        "dir": TEXT.filter(lambda text: not {"{", "}"} & set(text)) | st.just("runs/{name}-{time}"),
        "save": TEXT,
        "results": TEXT,
        "loggers": st.lists(st.sampled_from(["tensorboard", "mlflow", "mine"]), unique=True, max_size=3),
        "order": TEXT,
        "history": TEXT,
    },
    "checkpoint": {
        "dir": TEXT,
        "every_seconds": st.floats(1e-3, 86_400),
        "every_steps": COUNT,
        "keep": COUNT,
        "restarts": st.integers(0, 10**6),
        "in_memory": st.booleans(),
        "resume": TEXT,
    },
    "chaos": {
        "faults": st.lists(st.sampled_from(["kill worker 1 at push", "stop any after 3 s for 2 s"]), max_size=3),
        "every_s": st.floats(1e-3, 86_400),
        "kinds": st.lists(st.sampled_from(["kill", "stop", "terminate", "drop"]), min_size=1, unique=True),
        "members": st.lists(st.sampled_from(["server 0", "worker 17"]), max_size=2),
        "listens": st.booleans(),
        "seed": st.integers(0, 2**63 - 1),
        "dir": TEXT,
    },
    "security": {
        "ca": TEXT,
        "certificate": TEXT.filter(lambda text: not {"{", "}"} & set(text)) | st.just("certs/{member}.pem"),
        "key": TEXT.filter(lambda text: not {"{", "}"} & set(text)) | st.just("certs/{member}-key.pem"),
        "clients": st.sampled_from(["certificate", "token"]),
        "token_file": TEXT,
        "required": st.booleans(),
    },
}
PATHS = {
    *("path", "dir", "save", "results", "history", "order", "init_from", "resume"),
    *("ca", "certificate", "key", "token_file"),
}
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", alphabet=CHARACTERS, fullmatch=True)


def key_of(value: object) -> object:
    """A default as a job file has it."""
    return value.key if isinstance(value, Variant) else value


def is_consistent(optimizer: Tables) -> bool:
    """Whether the optimizer's settings belong together, by the words of the error messages."""
    fields = OptimizerSettings.model_fields
    of = {key: optimizer.get(key, key_of(fields[key].default)) for key in fields}
    complete = of["schedule"] != "step" or of["milestones"] or of["milestone_epochs"]
    once = not (of["milestones"] and of["milestone_epochs"]) and not (of["warmup_steps"] and of["warmup_epochs"])
    return bool(complete) and once and (not of["nesterov"] or (of["name"] == "sgd" and of["momentum"] > 0))


def secures(of: dict[str, Any]) -> bool:
    """Whether what belongs together for TLS is there, or nothing of it."""
    ca, pair = of["security.ca"] is not None, {of[f"security.{key}"] is not None for key in ("certificate", "key")}
    if pair == {True, False} or (pair == {True} and not ca):
        return False
    return not ca or pair == {True} or of["security.clients"] == "token"


def fits(job: Tables) -> bool:
    """Whether the settings belong together, by the words of the error messages."""
    of = {
        f"{section}.{key}": job.get(section, {}).get(key, key_of(SECTIONS[section].model_fields[key].default))
        for section, key in KEYS
    }
    if of["exchange.returns"] != "parameters" and not leaves_updates(of):
        return False
    if of["cluster.lost_after_s"] <= of["cluster.heartbeat_s"] or not (checkpoints_fit(of) and secures(of)):
        return False
    if of["train.label_smoothing"] and of["train.loss"] in {"mse", "bce"}:
        return False
    if not (clips_fit(of) and (of["exchange.local_steps"] == 1 or steps_locally(of, stage_of(of)))):
        return False
    return compression_fits(of) and zero_fits(of) and loose_fits(of)


def loose_fits(of: dict[str, Any]) -> bool:
    """Whether a step that does not wait for all workers has servers that send whole parameters."""
    if of["exchange.consistency"] in ("bsp", "ssp:0"):
        return True
    is_built_in = (of["exchange.returns"], of["train.precision"]) == ("parameters", "fp32")
    is_whole = (of["exchange.fc"], of["exchange.local_steps"], of["compression.method"]) == ("data", 1, "none")
    if not (is_built_in and is_whole and of["exchange.kind"] == "server" and stage_of(of) in (1, 2)):
        return False
    if of["exchange.transport"] == "same-host" or of["run.history"] not in (None, "none"):
        return False
    if of["exchange.consistency"] == "bsp:N-1":
        return bool(of["cluster.workers"] > 1)
    return bool(of["optimizer.name"] == "sgd")


def clips_fit(of: dict[str, Any]) -> bool:
    """Whether there are the gradients that are clipped."""
    clips = of["optimizer.clip_norm"] is not None or of["optimizer.clip_value"] is not None
    if not clips or of["exchange.fc"] != "data":
        return not clips
    if of["exchange.local_steps"] > 1:
        return True
    # Each server has a part of all sums.
    whole = of["optimizer.clip"] == "whole" and of["optimizer.clip_norm"] is not None
    return of["compression.method"] == "none" and not (whole and of["exchange.kind"] == "server" and stage_of(of))


def has_master(of: dict[str, Any]) -> bool:
    """Whether parameters, too, come in 16 bits."""
    return bool(of["train.precision"] != "fp32" and of["exchange.returns"] == "parameters")


def stage_of(of: dict[str, Any]) -> int:
    """The stage of ZeRO with servers."""
    usual = 0 if of["exchange.returns"] == "gradients" else 2 if has_master(of) else 1
    return usual if of["exchange.zero"] is None else int(of["exchange.zero"])


def steps_locally(of: dict[str, Any], stage: int) -> bool:
    """Whether workers keep whole copies that they can update, and one thing acts as momentum of their difference."""
    if stage > 1 or has_master(of) or of["exchange.fc"] != "data":
        return False
    if of["cluster.compute"] != "cpu" or of["compression.clip_norm"] is not None:
        return False
    return of["compression.method"] == "none" or not of["exchange.outer_momentum"]


def leaves_updates(of: dict[str, Any]) -> bool:
    """Whether the mean gradients can come back, or it can be the script that says who updates."""
    is_script = of["exchange.returns"] == "script"
    if is_script and of["exchange.kind"] == "ring":
        return False
    if (of["exchange.zero"] and not is_script) or of["exchange.fc"] != "data":
        return False
    if of["optimizer.clip_norm"] is not None or of["optimizer.clip_value"] is not None:
        return False
    fits_down = {"auto", "dense", *(("exact",) if of["exchange.kind"] == "server" else ())}
    return of["compression.method"] == "none" or of["compression.downlink"] in fits_down


def checkpoints_fit(of: dict[str, Any]) -> bool:
    """Whether there is one beginning."""
    return of["checkpoint.resume"] is None or of["model.init_from"] is None


def zero_fits(of: dict[str, Any]) -> bool:
    """Whether the stage of ZeRO belongs to the exchange."""
    usual = 1 if of["exchange.kind"] == "server" and of["exchange.returns"] != "gradients" else 0
    allowed = {0, 1, 2, 3}
    if of["compression.method"] != "none":
        allowed &= {usual}
    if of["exchange.transport"] == "same-host":
        allowed &= set(range(usual + 1))
    if has_master(of):
        allowed &= {2, 3}
    elif of["train.precision"] != "fp32":
        mapped = of["exchange.kind"] == "server" and of["exchange.transport"] == "same-host"
        if of["compression.method"] != "none" or mapped:
            return False
    if of["exchange.fc"] != "data" and of["train.precision"] == "fp16":
        return False
    if of["exchange.zero"] is None:
        return usual in allowed or (2 in allowed and has_master(of))
    return of["exchange.zero"] in allowed


def comes_in_few_bits(of: dict[str, Any]) -> bool:
    """Whether servers send some of the sums: they update by a rule without state, or not at all."""
    if of["exchange.kind"] == "ring" or of["compression.method"] == "none":
        return False
    steps_alone, plain = of["exchange.local_steps"] > 1, of["optimizer.name"] == "sgd"
    is_exact = of["exchange.returns"] != "parameters" or (
        (plain or steps_alone) and of["compression.momentum_at"] != "servers"
    )
    return bool(of["compression.downlink"] == "exact" or (of["compression.downlink"] == "auto" and is_exact))


def compression_fits(of: dict[str, Any]) -> bool:
    """Whether compression, optimizer and plan belong together."""
    selects = of["compression.downlink"] in ("exact", "doublesqueeze")
    sparse = selects and of["exchange.returns"] == "parameters"
    by_workers = of["compression.momentum_at"] == "workers"
    rounds_sums = of["compression.downlink_value_type"] != "fp32"
    is_rounded = of["compression.value_type"] != "fp32"
    may_be_rounded = of["exchange.kind"] == "server" or not is_rounded
    must_be_rounded = of["compression.method"] == "quantized"
    if not may_be_rounded or (must_be_rounded and not is_rounded) or (rounds_sums and not comes_in_few_bits(of)):
        return False
    if of["compression.method"] == "none" or of["exchange.transport"] == "same-host":
        return of["compression.method"] == "none" and not selects and not by_workers
    if of["compression.method"] == "topk" and of["exchange.plan"] not in ("auto", "single"):
        return False
    if of["exchange.local_steps"] > 1:
        return True
    if of["optimizer.name"] != "sgd":
        return not sparse and not by_workers
    return not (sparse and of["compression.momentum_at"] == "servers" and of["optimizer.momentum"] > 0)


# The keys that the rules above are about.
RULED = {
    "train": {"label_smoothing", "loss", "precision", "recompute"},
    "optimizer": {
        *("clip", "clip_norm", "clip_value", "milestone_epochs", "milestones", "momentum", "name", "nesterov"),
        *("schedule", "warmup_epochs", "warmup_steps"),
    },
    "exchange": {
        "consistency",
        "fc",
        "kind",
        "local_steps",
        "outer_momentum",
        "plan",
        "returns",
        "transport",
        "zero",
    },
    "compression": {"clip_norm", "downlink", "downlink_value_type", "method", "momentum_at", "value_type"},
    "cluster": {"compute", "heartbeat_s", "lost_after_s"},
    "checkpoint": {"dir", "resume"},
    "run": {"history"},
    "security": {"ca", "certificate", "clients", "key"},
}


def fitting(job: Tables, seed: int) -> Tables:
    """The job without what does not belong together: of jobs with half of all keys hardly one is right by chance."""
    keys = [(section, key) for section, own in RULED.items() for key in sorted(own & job.get(section, {}).keys())]
    random.Random(seed).shuffle(keys)
    while not (is_consistent(job.get("optimizer", {})) and fits(job)):
        section, key = keys.pop()
        del job[section][key]
    return job


def tables() -> st.SearchStrategy[Tables]:
    """Valid job files as TOML reads them, any keys left out."""
    sections: dict[str, st.SearchStrategy[Any]] = {
        name: st.fixed_dictionaries({}, optional=values) for name, values in VALUES.items()
    }
    drawn = st.fixed_dictionaries({}, optional={"name": NAMES, **sections})
    return st.builds(fitting, drawn, st.integers(0, 2**32 - 1))


def load(toml: str | bytes, *overrides: dict[str, dict[str, object]]) -> Job:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_bytes(toml.encode() if isinstance(toml, str) else toml)
        return load_job(path, *overrides)


def refusal(toml: str | bytes, *overrides: dict[str, dict[str, object]]) -> str:
    """The one line that says why a job file is refused."""
    with pytest.raises(ConfigError) as caught:
        load(toml, *overrides)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    return message


def test_every_key_of_the_job_file_is_drawn() -> None:
    assert {(section, key) for section, values in VALUES.items() for key in values} == set(KEYS)
    assert set(Job.model_fields) == {"name", *SECTIONS}


@quick
@given(tables())
def test_a_job_survives_its_file(given_tables: Tables) -> None:
    job = Job.model_validate(given_tables)
    again = load(job_to_toml(job))
    assert again == job
    assert again.digest == job.digest
    for section, values in given_tables.items():
        if isinstance(values, dict):
            shown = getattr(again, section).model_dump()
            expected = {k: Path(v) if k in PATHS else v for k, v in values.items()}
            expected |= {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
            assert {key: shown[key] for key in values} == expected


@quick
@given(tables())
def test_a_job_file_that_is_written_is_ascii(given_tables: Tables) -> None:
    assert job_to_toml(Job.model_validate(given_tables)).isascii()


def test_a_job_file_is_utf_8_whatever_the_locale() -> None:
    assert load('[data]\npath = "/daten/größe-😀"'.encode()).data.path == Path("/daten/größe-😀")


def test_a_byte_order_mark_is_no_part_of_a_job() -> None:
    assert load(b"\xef\xbb\xbf[train]\nsteps = 7\n").train.steps == 7


def test_a_whole_number_is_a_number() -> None:
    job = load("[optimizer]\nlearning_rate = 1\n[cluster]\nlost_after_s = 20")
    assert (job.optimizer.learning_rate, job.cluster.lost_after_s) == (1.0, 20.0)


def test_no_message_shows_a_pattern() -> None:
    for key in ("name", "exchange.plan", "cluster.coordinator"):
        section, _, name = key.rpartition(".")
        message = refusal(f"[{section}]\n{name} = '*'" if section else "name = '*'")
        assert "for example" in message
        assert not set("^$\\+") & set(message.replace("'*'", "").partition("job.toml")[2]), message


def test_no_file_and_an_empty_file_are_the_default_job() -> None:
    assert load_job(None) == Job() == load("")


@pytest.mark.parametrize("section", SECTIONS)
def test_a_key_with_a_letter_missing_suggests_a_near_one(section: str) -> None:
    for key in SECTIONS[section].model_fields:
        wrong = key[:1] + key[2:]
        message = refusal(f"[{section}]\n{wrong} = 1")
        assert f"unknown key {section}.{wrong}; did you mean " in message
        suggested = message.partition("did you mean ")[2].removesuffix("?")
        assert suggested.startswith(f"{section}.")
        if len(key) > 5 and not key.startswith("beta"):
            assert suggested == f"{section}.{key}"


@pytest.mark.parametrize("other", SECTIONS)
def test_a_key_in_the_wrong_section_suggests_its_home(other: str) -> None:
    assert load(f"[{other}]") == Job()
    for key in {key for _, key in KEYS} - SECTIONS[other].model_fields.keys():
        suggested = refusal(f"[{other}]\n{key} = 1").partition("did you mean ")[2].removesuffix("?")
        assert suggested in {f"{name}.{key}" for name, model in SECTIONS.items() if key in model.model_fields}


def test_a_key_without_a_section_suggests_its_home() -> None:
    for key in {key for _, key in KEYS} - {"name"}:
        homes = [home for home, model in SECTIONS.items() if key in model.model_fields]
        message = refusal(f"{key} = 1")
        assert any(f"unknown key {key}; did you mean {home}.{key}?" in message for home in homes), message


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_with_letters_exchanged_suggests_the_right_one(section: str) -> None:
    wrong = section[0] + section[2] + section[1] + section[3:]
    assert f"unknown key {wrong}; did you mean {section}?" in refusal(f"[{wrong}]")


@pytest.mark.parametrize("value", ["3", "'resnet20'", "[1, 2]", "true", "1979-05-27", "[{steps = 3}]", "[]"])
def test_a_section_that_is_no_table_is_named(value: str) -> None:
    for section in SECTIONS:
        assert f": {section}: " in refusal(f"{section} = {value}")


def test_a_setting_cannot_go_into_what_is_no_table() -> None:
    for given_name in ("", 'name = "mine"'):
        assert "name" in refusal(given_name, {"name": {"first": "x"}})
    settings_given: list[dict[str, object]] = [{"steps": 3}, {}]
    for values in settings_given:
        assert ": train: expected a table, got 3" in refusal("train = 3", {"train": values})


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[train]\nsteps = 'many'", ["train.steps", "integer", "'many'"]),
        ("[train]\nsteps = 2.5", ["train.steps", "integer", "2.5"]),
        ("[train]\nsteps = []", ["train.steps", "integer"]),
        ("[train]\nsteps = 1979-05-27", ["train.steps", "integer", "1979"]),
        ("[train.steps]\nx = 1", ["train.steps", "integer"]),
        ("[train]\nsteps = 'two\\nlines'", ["train.steps", "two"]),
        ("[train]\nevaluate = 'maybe'", ["train.evaluate", "boolean", "'maybe'"]),
        ("[model]\nname = 20", ["model.name", "string", "20"]),
        ("[data]\npath = 3", ["data.path", "3"]),
        ("[model]\nname = 'resnet-20'", ["model.name", "resnet-20", "did you mean resnet20?", "file.py:function"]),
        ("[data]\nname = 'CIFAR-10'", ["data.name", "'CIFAR-10'", "did you mean cifar10?", "known: digits"]),
        ("[data]\nname = 'synthetic:3x32'", ["data.name", "synthetic:3x32", "no image shape"]),
        ("[optimizer]\nlearning_rate = 'fast'", ["optimizer.learning_rate", "number", "'fast'"]),
        ("[optimizer]\nmilestones = 800", ["optimizer.milestones", "800"]),
        ("[optimizer]\nmilestones = [800, 0]", ["optimizer.milestones.1", "from 1"]),
        ("[optimizer]\nname = 'lion'", ["optimizer.name", "'sgd'", "'adamw'", "'lion'"]),
        ("[exchange]\nplan = 'bucket:big'", ["exchange.plan", "bucket:big"]),
        ("[exchange]\nplan = 'bucket:\N{ARABIC-INDIC DIGIT FOUR}MB'", ["exchange.plan"]),
        ("[exchange]\nkind = 'star'", ["exchange.kind", "'server'", "'ring'", "'star'"]),
        ("[cluster]\ncoordinator = 'here'", ["cluster.coordinator", "here", "host:port", "10.0.0.1:7070"]),
        ("[cluster]\ncoordinator = 'here:99999'", ["cluster.coordinator", "here:99999", "0 to 65535"]),
        ("[train]\nbatch = true", ["train.batch: expected an integer from 1 to 1000000, got true"]),
        (
            "[train]\nbatch = '32'",
            ["train.batch: expected an integer", "'32'; write it without quotes: train.batch = 32"],
        ),
        (
            "[train]\nbatch = 32.0",
            ["train.batch: expected an integer", "32.0; write it without a point: train.batch = 32"],
        ),
        ("[train]\nevaluate = 1", ["train.evaluate: expected a boolean, true or false, got 1"]),
        ("[optimizer]\nlearning_rate = '0.1'", ["optimizer.learning_rate: expected a number", "without quotes"]),
        (
            "[compression]\nthreshold_slack = 'much'",
            ["compression.threshold_slack: expected a number from 0 to 1000, or 'none', got 'much'"],
        ),
        ("[optimizer]\nmomentum = false", ["optimizer.momentum: expected a number", "got false"]),
        ("[optimizer]\nmilestones = [800, '900']", ["optimizer.milestones.1: expected an integer", "'900'"]),
        ("[exchange]\nzero = true", ["exchange.zero: expected an integer from 0 to 3, got true"]),
        ("[cluster]\ncoordinator = 'here:\N{ARABIC-INDIC DIGIT FOUR}'", ["cluster.coordinator"]),
        (
            "[exchange]\nkind = 'ring'\n[compression]\nmethod = 'dlgs'\nvalue_type = 'fp16'",
            ["ring", "compression.value_type = 'fp32'"],
        ),
        (
            "[exchange]\nkind = 'ring'\n[compression]\nmethod = 'dlgs'\ndownlink_value_type = 'int4'",
            ["compression.downlink_value_type int4", "a ring has no servers", "set it to 'fp32'"],
        ),
        (
            "[optimizer]\nname = 'adamw'\n[compression]\nmethod = 'dlgs'\ndownlink_value_type = 'int4'",
            ["compression.downlink_value_type int4", "optimizer 'adamw' runs on the servers", "set it to 'fp32'"],
        ),
        (
            "[compression]\nmethod = 'none'\ndownlink_value_type = 'int4'",
            ["compression.downlink_value_type int4", "choose a compression.method"],
        ),
        (
            "[compression]\nmethod = 'dlgs'\ndownlink = 'dense'\ndownlink_value_type = 'int4'",
            ["compression.downlink_value_type int4", "set compression.downlink = 'exact'"],
        ),
        (
            "[exchange]\ntransport = 'same-host'\n[compression]\nmethod = 'dlgs'",
            ["messages", "exchange.transport = 'auto'"],
        ),
        (
            "[exchange]\nlocal_steps = 4\nzero = 2",
            ["exchange.local_steps 4", "zero 2", "leave exchange.zero and train.precision out"],
        ),
        ("[exchange]\nlocal_steps = 4\nfc = 'auto'", ["exchange.local_steps 4", "exchange.fc = 'data'"]),
        (
            "[exchange]\nlocal_steps = 4\n[cluster]\ncompute = 'sw26010'",
            ["steps of one batch", "exchange.local_steps = 1"],
        ),
        (
            "[exchange]\nlocal_steps = 4\n[compression]\nmethod = 'dlgs'\nclip_norm = 1.0",
            ["compression.clip_norm", "optimizer.clip_norm in its place"],
        ),
        (
            "[exchange]\nlocal_steps = 4\nouter_momentum = 0.9\n[compression]\nmethod = 'dlgs'",
            ["exchange.outer_momentum", "acts as momentum"],
        ),
        (
            "[exchange]\nconsistency = 'ssp'",
            ["exchange.consistency", "'bsp', 'ssp:K' with K up to 10000, 'async' or 'bsp:N-b'", "got 'ssp'"],
        ),
        *(
            (f"[exchange]\nconsistency = '{consistency}'\n{other}", [f"exchange.consistency '{consistency}'", remedy])
            for consistency, other, remedy in (
                ("async", "kind = 'ring'", "exchange.kind = 'server'"),
                ("async", "[train]\nprecision = 'bf16'", "train.precision = 'fp32'"),
                ("ssp:1", "zero = 0", "exchange.zero = 1 or 2"),
                ("ssp:1", "zero = 3", "exchange.zero = 1 or 2"),
                ("ssp:1", "fc = 'shard'", "exchange.fc = 'data'"),
                ("ssp:1", "local_steps = 4", "exchange.local_steps = 1"),
                ("ssp:1", "[compression]\nmethod = 'dlgs'", "compression.method = 'none'"),
                ("ssp:1", "transport = 'same-host'", "exchange.transport = 'auto'"),
                ("ssp:1", "[run]\nhistory = 'history'", "leave run.history out"),
                ("ssp:1", "[optimizer]\nname = 'adam'", "optimizer.name = 'sgd'"),
                ("bsp:N-2", "[cluster]\nworkers = 2", "raise cluster.workers"),
            )
        ),
        ("[cluster]\ncompute = 'gpu'", ["cluster.compute", "'cpu' or 'sw26010'", "'gpu'"]),
        (
            "[cluster]\ncompute = 'sw26010-functional'",
            ["cluster.compute", "use 'sw26010'", "taihu dev bench sw26010"],
        ),
        ("[cluster]\nheartbeat_s = 20", ["cluster.lost_after_s 15", "more than cluster.heartbeat_s, 20"]),
        ("[optimizer]\nschedule = 'step'", ["optimizer.milestones"]),
        ("[optimizer]\nschedule = 'step'", ["optimizer.milestone_epochs"]),
        ("[optimizer]\ndecay_steps = 0", ["optimizer.decay_steps", "from 1"]),
        ("[optimizer]\nmilestones = [9]\nmilestone_epochs = [5]", ["optimizer.milestones", "give one of the two"]),
        ("[optimizer]\nwarmup_steps = 9\nwarmup_epochs = 0.5", ["optimizer.warmup_steps", "give one of the two"]),
        ("[optimizer]\nname = 'adam'\nnesterov = true", ["nesterov", "sgd"]),
        ("[optimizer]\nmomentum = 0\nnesterov = true", ["nesterov", "momentum"]),
        ("name = 'two words'", ["name: expected at most 100 letters", "for example 'fashion-2'", "got 'two words'"]),
        ("name = ''", ["name"]),
        ("name = 'two\\nlines'", ["name"]),
        ("name = '" + "a" * 101 + "'", ["name"]),
        ('"two\\nlines" = 1', ["unknown key", "two"]),
        ('[train]\n"two\\nlines" = 1', ["unknown key train.two"]),
        ("[train", ["not valid TOML"]),
        ("steps: 3", ["not valid TOML", "line 1"]),
        ("[train]\nsteps = 1\nsteps = 2", ["not valid TOML", "overwrite"]),
        ("a = " + "[" * 10_000, ["job.toml"]),
        ("a = " + "9" * 5_000, ["job.toml"]),
        (b"\xff\xfe", ["job.toml", "cannot be read"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(toml: str | bytes, words: list[str]) -> None:
    message = refusal(toml)
    assert "job.toml" in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("key", "outside", "inside"),
    [
        ("train.batch", ["0", "-1", "1000001", "1000000000000"], ["1", "1000000"]),
        ("train.steps", ["0"], ["1"]),
        ("train.seed", ["-1", str(2**63)], ["0", str(2**63 - 1)]),
        ("optimizer.learning_rate", ["0.0", "-0.1", "10001", "nan", "inf", "-inf"], ["1", "1e-300", "10000"]),
        ("optimizer.momentum", ["-0.1", "1.0", "nan"], ["0", "0.999"]),
        ("optimizer.weight_decay", ["-1e-9", "nan", "inf"], ["0"]),
        ("optimizer.beta1", ["1", "-1"], ["0"]),
        ("optimizer.warmup_steps", ["-1"], ["0"]),
        ("exchange.frame_bytes", ["4092", "4098", "4194308", "0"], ["4096", "4194304"]),
        ("exchange.timeout_s", ["0", "inf", "nan", "1e10", "86401"], ["0.5", "86400"]),
        ("exchange.bucket_bytes", ["8", "4095"], ["4096"]),
        ("exchange.window_frames", ["0", "1025"], ["1", "1024"]),
        ("exchange.local_steps", ["0", "-1", "10001"], ["1", "10000"]),
        ("exchange.outer_learning_rate", ["0", "101", "nan"], ["0.7", "100"]),
        ("exchange.outer_momentum", ["-0.1", "1"], ["0", "0.9"]),
        ("optimizer.epsilon", ["0", "1e-45", "2"], ["1e-30", "1"]),
        ("cluster.threads", ["-1", "4097"], ["0", "4096"]),
        ("cluster.heartbeat_s", ["1e-9", "0"], ["0.01", "14"]),
        ("cluster.core_groups", ["0", "5"], ["1", "4"]),
        ("cluster.servers", ["0"], ["1"]),
        ("cluster.lost_after_s", ["0", "-5", "inf"], ["0.6"]),
    ],
)
def test_ranges_end_where_they_say(key: str, outside: list[str], inside: list[str]) -> None:
    section, _, name = key.partition(".")
    for value in outside:
        assert f"{key}: expected a" in refusal(f"[{section}]\n{name} = {value}")
    for value in inside:
        assert getattr(getattr(load(f"[{section}]\n{name} = {value}"), section), name) == parse_value(value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-such\.toml: not found"):
        load_job(tmp_path / "no-such.toml")
    for path in (tmp_path, Path("job\0.toml")):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_job(path)


SCALARS = st.one_of(st.integers(), st.floats(), st.booleans(), TEXT, st.none(), st.lists(st.integers(), max_size=2))
ANY_KEY = st.sampled_from([key for _, key in KEYS]) | TEXT
ANY_SECTION = st.sampled_from(["name", *SECTIONS]) | TEXT


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(ANY_SECTION, st.dictionaries(ANY_KEY, SCALARS, max_size=3), max_size=3))
def test_any_settings_are_a_job_or_one_line(overrides: dict[str, dict[str, object]]) -> None:
    try:
        job = load_job(None, overrides)
    except ConfigError as error:
        line = str(error)
    else:
        line = load(job_to_toml(job)).digest
    assert len(line.splitlines()) == 1


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40) | st.text(alphabet="[]{}=\"'.#\n tru1e_", max_size=30).map(str.encode))
def test_any_file_is_a_job_or_one_line(content: bytes) -> None:
    try:
        line = load(content).digest
    except ConfigError as error:
        line = str(error)
    assert len(line.splitlines()) == 1


OTHER_VALUES: dict[str, dict[str, object]] = {
    "model": {"name": "resnet20", "init_from": "/elsewhere/m.safetensors", "init_skip": ["fc2"]},
    "data": {
        "name": "cifar10",
        "path": "/elsewhere",
        "augment": "flip",
        "resize": "16x24",
        "normalise": "none",
        "test_share": 0.7,
        "split_seed": 7,
        "target": "price",
        "sequence": 64,
        "task": "values",
        "drop": ["id"],
        "fill": ["mean"],
        "texts": ["zip"],
        "header": False,
        "encoding": "cp1252",
        "decimal": ",",
        "skip_bad": 3,
    },
    "train": {
        "batch": 7,
        "epochs": 7,
        "steps": 7,
        "seed": 7,
        "check_every": 7,
        "evaluate": False,
        "loss": "cross-entropy",
        "label_smoothing": 0.1,
        "recompute": "spill",
        "recompute_segments": 7,
        "precision": "bf16",
        "loss_scale": 8,
        "loss_scale_growth_steps": 7,
    },
    "optimizer": {
        "name": "adam",
        "learning_rate": 0.7,
        "momentum": 0.7,
        "nesterov": True,
        "weight_decay": 0.7,
        "beta1": 0.7,
        "beta2": 0.7,
        "epsilon": 0.7,
        "clip_norm": 0.7,
        "clip": "whole",
        "clip_value": 0.7,
        "schedule": "step",
        "milestones": [7],
        "gamma": 0.7,
        "decay_steps": 7,
        "final_learning_rate": 0.7,
        "warmup_steps": 7,
        "milestone_epochs": [7],
        "warmup_epochs": 0.7,
    },
    "exchange": {
        "plan": "single",
        "kind": "ring",
        "transport": "tcp",
        "fc": "shard",
        "fc_scheme": "turns",
        "fc_update": "pass",
        "fc_inputs": "own",
        "zero": 0,
        "local_steps": 7,
        "consistency": "ssp:7",
        "outer_learning_rate": 0.5,
        "outer_momentum": 0.5,
        "bucket_bytes": 8192,
        "live_bytes": 8192,
        "calibration_steps": 7,
        "replan_every": 7,
        "frame_bytes": 8192,
        "returns": "gradients",
        "window_frames": 7,
        "timeout_s": 7,
        "non_finite": "allow",
    },
    "compression": {
        "method": "lags",
        "density": 0.7,
        "threshold": "group",
        "refresh_every": 7,
        "threshold_slack": 7.0,
        "rank": 7,
        "value_type": "fp16",
        "downlink": "doublesqueeze",
        "downlink_value_type": "int4",
        "momentum_at": "workers",
        "held_back_rises": "yes",
        "factor_masking": True,
        "density_warmup_steps": 7,
        "clip_norm": 7,
        "clip": "whole",
    },
    "cluster": {
        "servers": 7,
        "workers": 7,
        "coordinator": "host:7",
        "connect_timeout_s": 7,
        "heartbeat_s": 7,
        "min_agents": 7,
        "lost_after_s": 7,
        "threads": 7,
        "reflection": True,
        "compute": "sw26010",
        "core_groups": 2,
        "pace": 7.0,
    },
    "run": {
        "dir": "elsewhere",
        "save": "m.safetensors",
        "results": "r.json",
        "loggers": ["tensorboard"],
        "order": "order",
        "history": "history",
    },
    "checkpoint": {
        "dir": "elsewhere",
        "every_seconds": 7.0,
        "every_steps": 7,
        "keep": 7,
        "restarts": 7,
        "in_memory": False,
        "resume": "step-7",
    },
    "chaos": {
        "faults": ["kill worker 1 at push"],
        "every_s": 7.0,
        "kinds": ["stop"],
        "members": ["worker 1"],
        "listens": True,
        "seed": 7,
        "dir": "elsewhere",
    },
    "security": {
        "ca": "elsewhere/ca.pem",
        "certificate": "elsewhere/{member}.pem",
        "key": "elsewhere/{member}-key.pem",
        "clients": "token",
        "token_file": "elsewhere/token",
        "required": True,
    },
}
LOCAL = {
    ("model", "init_from"),
    ("data", "path"),
    ("train", "evaluate"),
    ("train", "recompute"),
    ("train", "recompute_segments"),
    ("cluster", "coordinator"),
    ("cluster", "connect_timeout_s"),
    ("cluster", "min_agents"),
    ("cluster", "threads"),
    ("cluster", "reflection"),
    ("checkpoint", "dir"),
    ("checkpoint", "resume"),
    ("checkpoint", "in_memory"),
    ("run", "dir"),
    ("run", "save"),
    ("run", "results"),
    ("run", "loggers"),
    ("run", "history"),
    ("run", "order"),
    *(("chaos", key) for key in ChaosSettings.model_fields),
    *(("security", key) for key in SecuritySettings.model_fields),
}


def test_every_key_is_checked_for_the_digest() -> None:
    covered = {(section, key) for section, values in OTHER_VALUES.items() for key in values}
    assert covered == set(KEYS)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_digest_covers_what_members_share_and_nothing_local(section: str) -> None:
    for key in SECTIONS[section].model_fields:
        base: dict[str, dict[str, object]] = {} if "milestone" in key else {"optimizer": {"milestones": [800]}}
        if section == "compression":
            base["compression"] = {"method": "dlgs"}
        if section == "security":
            base["security"] = {"ca": "ca.pem", "certificate": "{member}.pem", "key": "{member}-key.pem"}
        changed = load_job(None, base, {section: {key: OTHER_VALUES[section][key]}})
        assert changed != load_job(None, base)
        assert (changed.digest == load_job(None, base).digest) == ((section, key) in LOCAL), key


def test_workers_that_gather_from_each_other_must_agree_on_what_they_compute_again() -> None:
    ring = {"exchange": {"kind": "ring", "zero": 3}}
    recompute = {"train": {"recompute": "memory"}}
    assert load_job(None, ring).digest != load_job(None, ring, recompute).digest
    assert load_job(None).digest == load_job(None, recompute).digest


@pytest.mark.parametrize(
    ("here", "there", "other"),
    [
        ("mine.py:load", "/data/host7/mine.py:load", "mine.py:load2"),
        ("./train.npz", "~/train.npz", "./other.npz"),
        ("sets/table.csv", "table.csv", "table.parquet"),
        ("./flowers", "/mnt/flowers/", "/mnt/flowers2"),
    ],
)
def test_own_data_may_lie_elsewhere_on_every_host(here: str, there: str, other: str) -> None:
    digests = [load_job(None, {"data": {"name": name}}).digest for name in (here, there, other)]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_covers_the_name() -> None:
    assert load("name = 'other'").digest != Job().digest


@quick
@given(tables(), tables())
def test_jobs_with_equal_digests_are_equal_but_for_local_settings(left: Tables, right: Tables) -> None:
    jobs = [Job.model_validate(each) for each in (left, right)]
    shared = []
    for job in jobs:
        values = job.model_dump()
        for section, key in LOCAL:
            del values[section][key]
        shared.append(values)
    assert (jobs[0].digest == jobs[1].digest) == (shared[0] == shared[1])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1", -1),
        ("1e-3", 1e-3),
        ("true", True),
        ("'quoted'", "quoted"),
        ("[800, 1200]", [800, 1200]),
        ("resnet20", "resnet20"),
        ("/data/here", "/data/here"),
        ("10.0.0.1:7070", "10.0.0.1:7070"),
        ("a = b", "a = b"),
        ("", ""),
        ("[1, 2", "[1, 2"),
        ("1\nother = 2", "1\nother = 2"),
        ("1\n[other]", "1\n[other]"),
        ("9" * 5_000, "9" * 5_000),
        ("[" * 10_000, "[" * 10_000),
    ],
)
def test_a_value_is_toml_or_text(text: str, value: object) -> None:
    assert parse_value(text) == value


@quick
@given(TEXT)
def test_any_text_is_a_value(text: str) -> None:
    parse_value(text)


def test_assignments_are_gathered_by_section() -> None:
    assigned = parse_assignments(["train.steps=3", "model.name = vgg16", "train.steps=4", "train.batch=5"])
    assert assigned == {"train": {"steps": 4, "batch": 5}, "model": {"name": "vgg16"}}
    assert parse_assignments(["data.path=a=b"]) == {"data": {"path": "a=b"}}


@pytest.mark.parametrize(
    "text", ["", "train", "train.steps", "train=3", ".steps=3", "train.=3", "=", " . = 3", "a\nb=1"]
)
def test_what_is_no_assignment_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--set .*expected section\.key=value, for example train\.steps=100"
    ) as caught:
        parse_assignments([text])
    assert len(str(caught.value).splitlines()) == 1


def test_a_name_with_a_line_break_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="unknown model ; known are") as caught:
        load_job(None, {"model": {"name": "\r"}})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("exchange", "exchanged", "expected"),
    [
        ({}, 1000, 16 << 20),
        ({"fc": "shard"}, 1000, 1 << 20),
        ({"fc": "shard"}, 4 << 20, 2 << 20),
        ({"fc": "auto"}, (4 << 20) + 7, (2 << 20) + 3),
        ({"fc": "shard"}, 100 << 20, 16 << 20),
        ({"fc": "shard", "bucket_bytes": 5000}, 4 << 20, 5000),
        ({"bucket_bytes": 5000}, 4 << 20, 5000),
    ],
)
def test_a_bucket_follows_what_spread_layers_leave(exchange: dict[str, Any], exchanged: int, expected: int) -> None:
    assert load_job(None, {"exchange": exchange}).bucket_bytes(exchanged) == expected


def test_a_name_that_is_no_text_is_refused_where_a_job_is_written() -> None:
    name = Path(os.fsdecode(b"r\xf6/model.safetensors"))
    with pytest.raises(ConfigError, match="not UTF-8; rename it"):
        job_to_toml(load_job(None, {"run": {"save": name}}))
