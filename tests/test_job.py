"""Job files: what is given where wins, and what is wrong is said in one line."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taihu.environment import environment_overrides, rank_from_environment, without_settings
from taihu.errors import ConfigError
from taihu.job import Job, job_to_toml, load_job, parse_assignments

JOBS = st.builds(
    lambda steps, batch, rate, path, milestones: Job.model_validate(
        {
            "train": {"steps": steps, "batch": batch},
            "optimizer": {"learning_rate": rate, "schedule": "step", "milestones": milestones},
            "data": {"path": path},
        }
    ),
    st.none() | st.integers(1, 10**9),
    st.integers(1, 4096),
    st.floats(1e-12, 1e6),
    st.none() | st.sampled_from(["/data/here", 'a "quoted" path', "umlaut-ä"]),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=4),
)


@given(JOBS)
def test_a_job_survives_its_file(job: Job) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(job_to_toml(job))
        assert load_job(path) == job


def test_flags_win_over_set_over_environment_over_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("[train]\nsteps = 1\nbatch = 1\nepochs = 1\nseed = 1\n")
    environment = environment_overrides({f"TAIHU_TRAIN__{key}": "2" for key in ("BATCH", "EPOCHS", "SEED")})
    assigned = parse_assignments(["train.epochs=3", "train.seed=3"])
    train = load_job(path, environment, assigned, {"train": {"seed": 4}}).train
    assert (train.steps, train.batch, train.epochs, train.seed) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[train]\nstesp = 3", ["train.stesp", "train.steps"]),
        ("[trian]\nsteps = 3", ["trian", "train"]),
        ("[train]\nmomentum = 0.9", ["train.momentum", "optimizer.momentum"]),
        ("[train]\nsteps = 'many'", ["train.steps", "integer", "many"]),
        ("[train]\nsteps = 0", ["train.steps", "greater than 0"]),
        ("train = 3", ["train"]),
        ("[cluster]\ncoordinator = 'here'", ["cluster.coordinator", "here"]),
        ("[exchange]\nplan = 'bucket:big'", ["exchange.plan", "bucket:big"]),
        ("[optimizer]\nschedule = 'cosine'", ["optimizer.decay_steps"]),
        ("[optimizer]\nname = 'adam'\nnesterov = true", ["nesterov"]),
        ("name = 'two words'", ["name", "two words"]),
        ("[train", ["TOML"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, toml: str, words: list[str]) -> None:
    path = tmp_path / "job.toml"
    path.write_text(toml)
    with pytest.raises(ConfigError) as caught:
        load_job(path)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_the_digest_covers_what_members_share_and_nothing_local() -> None:
    job = Job()

    def digest(section: str, **values: object) -> str:
        return load_job(None, {section: values}).digest

    assert digest("train", batch=7) != job.digest
    assert digest("optimizer", learning_rate=0.1) != job.digest
    assert digest("cluster", workers=7) != job.digest
    assert digest("exchange", plan="single") != job.digest
    assert digest("data", path="/elsewhere") == job.digest
    assert digest("cluster", coordinator="host:1", threads=3, connect_timeout_s=1) == job.digest


@pytest.mark.parametrize(
    ("environment", "role", "rank"),
    [
        ({"RANK": "3"}, "worker", 3),
        ({"SLURM_PROCID": "2"}, "worker", 2),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "worker", 1),
        ({"JOB_COMPLETION_INDEX": "5"}, "worker", 5),
        ({"JOB_COMPLETION_INDEX": "5"}, "server", 5),
        ({"DMLC_SERVER_ID": "1", "RANK": "9"}, "server", 1),
        ({"TAIHU_RANK": "4", "RANK": "9"}, "worker", 4),
        ({}, "worker", None),
    ],
)
def test_launchers_give_the_rank(environment: dict[str, str], role: str, rank: int | None) -> None:
    assert rank_from_environment(environment, role) == rank


def test_launchers_give_the_world_and_the_coordinator() -> None:
    torchrun = {"WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7070"}
    assert environment_overrides(torchrun) == {"cluster": {"workers": 4, "coordinator": "10.0.0.1:7070"}}
    dmlc = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "3", "DMLC_PS_ROOT_URI": "h", "DMLC_PS_ROOT_PORT": "1"}
    assert environment_overrides(dmlc) == {"cluster": {"workers": 2, "servers": 3, "coordinator": "h:1"}}
    with pytest.raises(ConfigError, match=r"WORLD_SIZE.*'four'"):
        environment_overrides({"WORLD_SIZE": "four"})


def test_a_resolved_job_is_not_changed_by_what_its_children_inherit() -> None:
    environment = {"PATH": "/bin", "RANK": "1", "WORLD_SIZE": "9", "TAIHU_TRAIN__STEPS": "1", "MASTER_ADDR": "x"}
    assert without_settings(environment) == {"PATH": "/bin"}
