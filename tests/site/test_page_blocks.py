"""Blocks of all pages: commands of taihu that exist, jobs that can be read, Python that compiles."""

from __future__ import annotations

import ast
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from support.command_lines import parse
from support.pages import DOCS, blocks, is_made, pages
from support.readme import commands, taihu_arguments

from taihu.core.base.errors import ConfigError
from taihu.core.job import load_job, setting_tables
from taihu.core.job.reading import parse_assignments

PAGES = [page for page in pages() if not is_made(page.read_text(encoding="utf-8"))]
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))


def brought_methods(page: str) -> set[str]:
    """Methods of compression that a package brings, as a page shows it."""
    files = [tomllib.loads(block.text) for block in blocks(page) if block.language == "toml"]
    projects = [file["project"]["entry-points"] for file in files if "project" in file]
    return {name for points in projects for name in points.get("taihu.methods", ())}


@by_page
def test_commands_and_options_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    wrong, brought = [], brought_methods(text)
    for command in commands(text):
        for arguments in taihu_arguments(command.text):
            try:
                parse(["dlgs" if each in brought else each for each in arguments])
            except Exception as error:
                wrong.append(f"{command.text}: {error}")
    assert not wrong, "\n".join(wrong)


@by_page
def test_what_is_set_can_be_set(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    words = [words for command in commands(text) for words in taihu_arguments(command.text)]
    given = [[value for option, value in pairwise(each) if option == "--set"] for each in words]
    wrong = []
    for each in filter(None, given):
        try:
            load_job(None, parse_assignments(each))
        except ConfigError as error:
            # A value may need others, which a job file has.
            wrong += [f"{page.name}: {error}"] if "unknown key" in str(error) else []
    assert not wrong, "\n".join(wrong)


@by_page
def test_files_of_toml_are_jobs_where_their_tables_are_those_of_jobs(page: Path, tmp_path: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "toml" and tomllib.loads(block.text).keys() <= {"name", *setting_tables()}:
            file = tmp_path / "job.toml"
            file.write_text(block.text, encoding="utf-8")
            try:
                load_job(file)
            except ConfigError as error:
                pytest.fail(f"{page.name}:{block.line}: {error}")


@by_page
def test_python_compiles(page: Path) -> None:
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "python":
            try:
                ast.parse(block.text)
            except SyntaxError as error:
                pytest.fail(f"{page.name}:{block.line}: {error}")
