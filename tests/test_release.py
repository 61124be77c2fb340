"""A release: one version everywhere, a changelog that is read, a workflow and forms that name what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from taihu import __version__

ROOT = Path(__file__).parents[1]
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def read(name: str) -> str:
    return (ROOT / name).read_text()


def test_the_version_has_one_place() -> None:
    project = tomllib.loads(read("pyproject.toml"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "taihu.core.__version__"}


def test_pages_and_manifests_have_that_version() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {"cff-version", "title", "message", "authors"} <= citation.keys()
    assert citation["version"] == __version__
    newest = re.findall(r"^## \[(\d.*)\] - (\d{4}-\d\d-\d\d)$", read("CHANGELOG.md"), re.M)[0]
    assert newest == (__version__, str(citation["date-released"]))
    images = yaml.safe_load(read("deploy/k8s/overlays/prod/kustomization.yaml"))["images"]
    assert {image["newTag"] for image in images} == {__version__}


def test_the_changelog_is_read_in_two_minutes() -> None:
    text = read("CHANGELOG.md")
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    assert sections[0].startswith("[Unreleased]")
    assert all(len(section.splitlines()) <= 60 for section in sections)
    kinds = set(re.findall(r"^### (.+)$", text, re.M))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for target in re.findall(r"\]\(((?:docs|deploy)/[^)#]+)", text):
        assert (ROOT / target).exists(), target


def test_the_workflow_runs_the_gate_on_the_versions_that_the_package_names() -> None:
    jobs: dict[str, Any] = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    versions = jobs["gate"]["strategy"]["matrix"]["python"]
    named = re.findall(r"Python :: (3\.\d+)", read("pyproject.toml"))
    assert versions[: len(named)] == named  # those behind are tried before they are promised
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.M))
    assert {word for line in commands for word in re.findall(r"^make (\S+)", line)} <= targets
    assert any(".ci/run" in line for line in commands)
    assert any("deploy/Containerfile" in line for line in commands)
    assert all(job["timeout-minutes"] for job in jobs.values())


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_of_issues_asks_for_what_it_names(form: Path) -> None:
    asked = yaml.safe_load(form.read_text())
    assert asked["name"]
    assert asked["description"]
    names = [field["id"] for field in asked["body"]]
    assert len(set(names)) == len(names)
    assert {field["type"] for field in asked["body"]} <= KINDS
    assert all(field["attributes"]["label"] for field in asked["body"])


def test_the_licence_is_the_one_that_is_named() -> None:
    assert read("LICENSE").lstrip().startswith("Apache License")
    assert tomllib.loads(read("pyproject.toml"))["project"]["license"] == "Apache-2.0"
