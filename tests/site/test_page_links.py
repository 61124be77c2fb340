"""The way from the front page to every page, and what made pages name."""

from __future__ import annotations

import re
from pathlib import Path

from from_code import command_pages, errors, metrics, protos
from support.pages import DOCS, linked

ROOT = DOCS.parent


def reached() -> set[Path]:
    """The pages that links and tables of contents lead to, one after another, from the front page."""
    found, new = set[Path](), {(DOCS / "index.md").resolve()}
    while new:
        found |= new
        new = {to for page in new for to, _ in linked(page) if to.suffix == ".md" and to.exists()} - found
    return found


def test_every_page_is_reached_from_the_front_page() -> None:
    assert {page.resolve() for page in DOCS.rglob("*.md")} - reached() == set()


def test_links_of_pages_lead_to_files() -> None:
    """To anchors, too: Sphinx finds those that are not there."""
    missing = {f"{page.name}: {to}" for page in DOCS.rglob("*.md") for to, _ in linked(page) if not to.exists()}
    assert not missing


def test_every_call_of_the_contract_is_listed() -> None:
    calls = [
        call for file in (ROOT / "protos").glob("*.proto") for call in re.findall(r"\brpc (\w+)", file.read_text())
    ]
    page = protos.page()
    assert len(calls) > 20
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.M)) == sorted(calls)


def test_every_metric_is_listed() -> None:
    """By the words of the code itself."""
    code = "".join(
        (ROOT / "core" / name).read_text() for name in ("wire/serving/metrics.py", "coordination/metrics.py")
    )
    assert set(re.findall(r"\"(taihu_\w+)\"", code)) == set(re.findall(r"`(taihu_\w+)`", metrics.page()))


def test_every_option_has_a_row() -> None:
    page, of_all = command_pages.page(), {"--help", "--version"}
    shown = [each.opts for _, each in command_pages.options() if each.param_type_name == "option" and not each.hidden]
    assert not [names for names in shown if not of_all & {*names} and not any(f"`{name}`" in page for name in names)]


def test_errors_have_exit_codes_and_classes() -> None:
    page = errors.page()
    assert "| `ConfigError` | `TaihuError` | 2 |" in page
    assert "| 130 | stopped" in page
