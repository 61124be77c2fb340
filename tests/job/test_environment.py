"""Settings in the environment, by launchers and by `TAIHU_...`, and the order in which they win."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import CHARACTERS

from taihu.core.base.errors import ConfigError
from taihu.core.job import load_job
from taihu.core.job.environment import (
    coordinator_from_environment,
    environment_overrides,
    launcher_overrides,
    rank_from_environment,
    resolve_job,
    without_settings,
)
from taihu.core.job.variables import check_variables, known_variables

ROOT = Path(__file__).parents[2]

quick = settings(deadline=None)

WORKERS = ["WORLD_SIZE", "DMLC_NUM_WORKER", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"]
RANKS = ["RANK", "DMLC_WORKER_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "JOB_COMPLETION_INDEX"]
INDICES = ["DMLC_SERVER_ID", "JOB_COMPLETION_INDEX"]
COORDINATORS = [("MASTER_ADDR", "MASTER_PORT"), ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")]
ALIASES = [*WORKERS, "DMLC_NUM_SERVER", *RANKS, "DMLC_SERVER_ID", *(name for pair in COORDINATORS for name in pair)]
OWN = ["TAIHU_RANK", "TAIHU_TRAIN__STEPS", "TAIHU_CLUSTER__WORKERS", "TAIHU_MODEL__NAME", "TAIHU_METRICS_PORT"]
FOREIGN = ["PATH", "HOME", "OMP_NUM_THREADS", "RANKS", "MY_TAIHU_TRAIN__STEPS", "SLURM_JOB_ID", "PYTHONPATH"]


@pytest.mark.parametrize("name", WORKERS)
def test_a_launcher_says_how_many_workers_there_are(name: str) -> None:
    overrides = launcher_overrides({name: "5"})
    assert overrides == {"cluster": {"workers": 5}}
    assert load_job(None, overrides).cluster.workers == 5


def test_a_launcher_says_how_many_servers_there_are() -> None:
    assert launcher_overrides({"DMLC_NUM_SERVER": "4"}) == {"cluster": {"servers": 4}}


@pytest.mark.parametrize(("host", "port"), COORDINATORS)
def test_a_launcher_says_where_server_0_is(host: str, port: str) -> None:
    environment = {host: "10.0.0.1", port: "7070"}
    assert coordinator_from_environment(environment) == "10.0.0.1:7070"
    assert launcher_overrides(environment) == {"cluster": {"coordinator": "10.0.0.1:7070"}}
    for missing in (host, port):
        half = {name: value for name, value in environment.items() if name != missing}
        assert coordinator_from_environment(half) is None
        assert launcher_overrides(half) == {}


@pytest.mark.parametrize(("role", "names"), [("worker", RANKS), ("server", INDICES)])
def test_a_launcher_says_the_rank(role: str, names: list[str]) -> None:
    for name in names:
        assert rank_from_environment({name: "3"}, role) == 3
    for name in set(ALIASES) - set(names):
        assert rank_from_environment({name: "3"}, role) is None
    assert rank_from_environment({}, role) is None


def test_a_rank_is_no_setting_of_the_job() -> None:
    ranks = dict.fromkeys({*RANKS, *INDICES, "TAIHU_RANK"}, "3")
    assert environment_overrides(ranks) == launcher_overrides(ranks) == {}


@pytest.mark.parametrize("role", ["worker", "server"])
def test_our_own_variable_wins_over_a_launchers(role: str) -> None:
    assert rank_from_environment({"TAIHU_RANK": "4", **dict.fromkeys(ALIASES, "9")}, role) == 4
    offset = {"TAIHU_RANK_OFFSET": "2"}
    assert rank_from_environment({"TAIHU_RANK": "4", **offset}, role) == 4
    assert rank_from_environment({"JOB_COMPLETION_INDEX": "3", **offset}, role) == 5
    assert rank_from_environment(offset, role) is None
    environment = {"TAIHU_CLUSTER__WORKERS": "4", "WORLD_SIZE": "9", "DMLC_NUM_SERVER": "2"}
    with patch.dict(os.environ, environment, clear=True):
        cluster = resolve_job(None, [], {}, launched=True).cluster
    assert (cluster.workers, cluster.servers) == (4, 2)


@pytest.mark.parametrize("name", [*WORKERS, "DMLC_NUM_SERVER"])
@pytest.mark.parametrize("value", ["four", "", "2.5", "1e3", "two\nlines"])
def test_a_size_that_is_no_number_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"environment variable {name}: expected a number, got") as caught:
        launcher_overrides({name: value})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "role"), [*((n, "worker") for n in [*RANKS, "TAIHU_RANK"]), *((n, "server") for n in INDICES)]
)
def test_a_rank_that_is_no_number_is_named(name: str, role: str) -> None:
    with pytest.raises(ConfigError, match=f"environment variable {name}: expected a number, got 'first'"):
        rank_from_environment({name: "first"}, role)


def test_taihus_variables_set_any_key() -> None:
    environment = {
        "TAIHU_TRAIN__STEPS": "7",
        "TAIHU_MODEL__NAME": "resnet20",
        "TAIHU_OPTIMIZER__LEARNING_RATE": "1e-3",
        "TAIHU_OPTIMIZER__MILESTONES": "[3, 5]",
        "TAIHU_TRAIN__EVALUATE": "false",
        "TAIHU_CLUSTER__COORDINATOR": "10.0.0.1:7070",
        "TAIHU_DATA__PATH": "/data/here",
    }
    job = load_job(None, environment_overrides(environment))
    assert (job.train.steps, job.model.name, job.optimizer.learning_rate) == (7, "resnet20", 1e-3)
    assert (job.optimizer.milestones, job.train.evaluate) == ((3, 5), False)
    assert (job.cluster.coordinator, job.data.path) == ("10.0.0.1:7070", Path("/data/here"))


@pytest.mark.parametrize(
    "name", ["TAIHU_RANK", "TAIHU_METRICS_PORT", "TAIHU_REWRITE", "TAIHU_", "NOT_TAIHU_A__B", "A__B"]
)
def test_other_variables_set_no_key(name: str) -> None:
    assert environment_overrides({name: "1"}) == {}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TAIHU_TRAIN__STESP", "TAIHU_TRAIN__STEPS"),
        ("TAIHU_TRAIN__STPES", "TAIHU_TRAIN__STEPS"),
        ("TAIHU_TRIAN__STEPS", "TAIHU_TRAIN__STEPS"),
        ("TAIHU_TRAIN_STEPS", "TAIHU_TRAIN__STEPS"),
        ("TAIHU_RNAK", "TAIHU_RANK"),
        ("TAIHU_BIN", "TAIHU_BIND"),
        ("TAIHU_METRICS_PROT", "TAIHU_METRICS_PORT"),
        ("TAIHU_LINGRE", "TAIHU_LINGER"),
        ("TAIHU_TRAIN__A__B", None),
        ("TAIHU_TRAIN__A\nB", None),
        ("TAIHU___STEPS", None),
        ("TAIHU_", None),
        ("TAIHU_XYZZY", None),
    ],
)
def test_a_variable_that_means_nothing_is_an_error_with_the_nearest_name(name: str, near: str | None) -> None:
    with pytest.raises(ConfigError, match=f"environment variable {name.split(maxsplit=1)[0]}") as caught:
        check_variables({"HOME": "/root", name: "1"})
    assert len(str(caught.value).splitlines()) == 1
    assert near is None or str(caught.value).endswith(f"did you mean {near}?")


def test_every_key_and_every_variable_of_the_project_means_something() -> None:
    check_variables(dict.fromkeys(known_variables(), "1"))
    code = (path for room in ("core", "ps_server", "taihu", "worker") for path in ROOT.glob(f"{room}/**/*.py"))
    files = [*code, *ROOT.glob("deploy/**/*"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file())
    named = {name for text in texts for name in re.findall(r"\bTAIHU_[A-Z_]*[A-Z]\b", text)}
    assert {"TAIHU_BIND", "TAIHU_IMAGE"} < named
    assert named - set(known_variables()) <= {"TAIHU_SECTION__KEY"}


def test_the_services_that_kubernetes_tells_a_container_of_are_no_settings() -> None:
    address = "tcp://10.0.0.11:6379"
    check_variables(
        {
            "TAIHU_REDIS_SERVICE_HOST": "10.0.0.11",
            "TAIHU_REDIS_SERVICE_PORT": "6379",
            "TAIHU_REDIS_SERVICE_PORT_HTTP": "6379",
            "TAIHU_REDIS_PORT": address,
            "TAIHU_REDIS_PORT_6379_TCP": address,
            "TAIHU_REDIS_PORT_6379_TCP_PROTO": "tcp",
            "TAIHU_REDIS_PORT_6379_TCP_PORT": "6379",
            "TAIHU_REDIS_PORT_6379_TCP_ADDR": "10.0.0.11",
        }
    )


@pytest.mark.parametrize(
    ("environment", "assigned", "flags", "words"),
    [
        (
            {"TAIHU_TRAIN__STEPS": "x"},
            [],
            {},
            "environment variable TAIHU_TRAIN__STEPS: train.steps: exp",
        ),
        ({"TAIHU_TRAIN__STEPS": "5"}, ["train.steps=x"], {}, "--set: train.steps: expected an integer"),
        ({"TAIHU_TRAIN__STEPS": "x"}, ["train.steps=5"], {"train": {"steps": 0}}, "command line: train.steps: exp"),
        ({"WORLD_SIZE": "0"}, [], {}, "launcher: cluster.workers: expected an integer"),
    ],
)
def test_an_error_names_who_set_the_value(
    environment: dict[str, str], assigned: list[str], flags: dict[str, dict[str, object]], words: str
) -> None:
    with patch.dict(os.environ, environment, clear=True), pytest.raises(ConfigError) as caught:
        resolve_job(None, assigned, flags, launched=True)
    assert str(caught.value).startswith(words)


def test_a_run_that_is_started_as_a_whole_takes_no_heed_of_a_launcher(tmp_path: Path) -> None:
    job_file = tmp_path / "job.toml"
    job_file.write_text("[cluster]\nworkers = 2\n")
    launcher = {"WORLD_SIZE": "64", "SLURM_NTASKS": "64", "DMLC_NUM_SERVER": "9", "RANK": "5"}
    place = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7070"}
    with patch.dict(os.environ, {**launcher, **place}, clear=True):
        alone, launched = resolve_job(job_file, [], {}), resolve_job(job_file, [], {}, launched=True)
    assert (alone.cluster.workers, alone.cluster.servers, alone.cluster.coordinator) == (2, 2, None)
    assert (launched.cluster.workers, launched.cluster.servers) == (64, 9)
    assert launched.cluster.coordinator == "10.0.0.1:7070"


@quick
@given(
    key=st.sampled_from(["train.batch", "train.steps", "train.seed", "cluster.workers", "cluster.servers"]),
    sources=st.sets(st.sampled_from(["file", "alias", "environment", "set", "flag"])),
)
def test_flags_win_over_set_over_environment_over_aliases_over_the_file(key: str, sources: set[str]) -> None:
    section, _, name = key.partition(".")
    alias = {"cluster.workers": "WORLD_SIZE", "cluster.servers": "DMLC_NUM_SERVER"}.get(key)
    environment = {f"TAIHU_{section}__{name}".upper(): "103"} if "environment" in sources else {}
    if alias is not None and "alias" in sources:
        environment[alias] = "102"
    if alias is None:
        sources = sources - {"alias"}
    order = {"file": 101, "alias": 102, "environment": 103, "set": 104, "flag": 105}
    expected = max((order[source] for source in sources), default=getattr(getattr(load_job(None), section), name))
    assigned = [f"{key}=104"] if "set" in sources else []
    flags = {section: {name: 105 if "flag" in sources else None}}
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, environment, clear=True):
        path = Path(folder) / "job.toml"
        path.write_text(f"[{section}]\n{name} = 101\n" if "file" in sources else "")
        job = resolve_job(path, assigned, flags, launched=True)
    assert getattr(getattr(job, section), name) == expected


@quick
@given(
    st.dictionaries(
        st.sampled_from([*ALIASES, *OWN, *FOREIGN])
        | st.from_regex(r"TAIHU_[A-Z_]{0,12}", alphabet=CHARACTERS, fullmatch=True),
        st.integers(0, 99).map(str) | st.text(CHARACTERS, max_size=5),
    )
)
def test_without_settings_nothing_changes_a_job(environment: dict[str, str]) -> None:
    rest = without_settings(environment)
    assert environment_overrides(rest) == launcher_overrides(rest) == {}
    assert coordinator_from_environment(rest) is None
    assert rank_from_environment(rest, "worker") is None
    assert rank_from_environment(rest, "server") is None
    assert {name: value for name, value in environment.items() if name in FOREIGN} == rest
