"""`taihu job`: the resolved job, all defaults, and what each key means; and the page made from the same."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from unittest.mock import patch

import pytest

from taihu.cli.main import make_app
from taihu.core.base.errors import ConfigError
from taihu.core.job import Job, load_job, setting_keys, setting_tables
from taihu.core.job.environment import without_settings
from taihu.core.job.flags import flags_by_key
from taihu.core.job.reference import defaults_toml, explain, reference_markdown
from taihu.core.process.entry import run_app
from taihu.core.settings.words import expected


def run_job(capsys: pytest.CaptureFixture[str], *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    with (
        patch.dict(os.environ, {**without_settings(os.environ), **environment}, clear=True),
        pytest.raises(SystemExit) as ended,
    ):
        run_app(make_app(), ["job", *arguments])
    return int(str(ended.value.code)), *capsys.readouterr()


def test_the_resolved_job_is_shown_with_what_has_no_effect(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "job.toml").write_text("[train]\nsteps = 7\n[optimizer]\nname = 'adam'\nmomentum = 0.5\n")
    code, shown, said = run_job(
        capsys, str(tmp_path / "job.toml"), "--set", "cluster.workers=5", TAIHU_TRAIN__BATCH="8", WORLD_SIZE="64"
    )
    assert code == 0
    job = Job.model_validate(tomllib.loads(shown))
    assert (job.train.steps, job.train.batch, job.cluster.workers, job.optimizer.name.key) == (7, 8, 5, "adam")
    assert said == "warning: optimizer.momentum = 0.5 has no effect: it is for optimizer.name sgd\n"


def test_the_defaults_are_a_job_file_whose_lines_may_be_taken_over(tmp_path: Path) -> None:
    text = defaults_toml()
    path = tmp_path / "job.toml"
    path.write_text(text)
    assert load_job(path) == Job()
    taken = [line.removeprefix("# ") for line in text.splitlines() if "(not set)" not in line]
    path.write_text("\n".join(taken))
    assert load_job(path) == Job()
    named = {line.removeprefix("# ").partition(" = ")[0] for line in text.splitlines() if " = " in line}
    assert {key.partition(".")[2] for key in setting_keys()} <= named


@pytest.fixture(scope="module")
def page() -> str:
    return reference_markdown()


@pytest.mark.parametrize("key", ["name", *setting_keys()])
def test_every_key_is_explained(key: str, page: str) -> None:
    told = explain(key)
    field = {"name": Job.model_fields["name"], **setting_keys()}[key]
    assert field.description
    assert field.description in told
    assert expected(field) in told
    assert flags_by_key().get(key, "none") in told
    if key != "name":
        assert f"TAIHU_{key.replace('.', '__').upper()}" in told
    assert f"`{key.rpartition('.')[2]}`" in page


@pytest.mark.parametrize("section", setting_tables())
def test_a_section_is_explained_by_its_keys(section: str) -> None:
    told = explain(section)
    for key, field in setting_tables()[section].model_fields.items():
        assert f"{section}.{key} " in told
        assert (field.description or "").split(maxsplit=1)[0] in told
    assert all(len(line) <= 118 for line in told.splitlines())


def test_a_key_may_lack_its_section_where_that_is_clear() -> None:
    assert explain("zero") == explain("exchange.zero")
    with pytest.raises(ConfigError, match=r"did you mean optimizer.clip_norm or compression.clip_norm\?"):
        explain("clip_norm")


def test_what_is_asked_must_be_a_key_and_one_thing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, said = run_job(capsys, "--explain", "train.stesp")
    assert (code, said) == (2, "error: unknown key train.stesp; did you mean train.steps?\n")
    code, _, said = run_job(capsys, "--explain", "train.steps", "--defaults")
    assert code == 2
    assert said.startswith("error: taihu job: expected one of")


def test_the_page_is_what_the_settings_say(page: str) -> None:
    written = Path(__file__).parents[2] / "docs" / "job.md"
    assert written.read_text(encoding="utf-8") == page, "run 'make reference'"
