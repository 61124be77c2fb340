"""Attempts of strangers against a job in the middle of its run: `python -m benchmarks refusals`.

Runs the tests that make them (`tests/security/test_strangers.py`), which also show that each is counted and that the
job's bits stay what they are, and prints what each met with; --docs puts the table into a page, between its markers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from benchmarks.base.rows import publish

__all__ = ["attempts_in", "table"]

_ROOT: Final = Path(__file__).parents[2]
_FILE: Final = "tests/security/test_strangers.py"
_TESTS: Final = tuple(
    f"{_FILE}::test_{name}"
    for name in (
        "every_attempt_is_refused_and_changes_nothing",
        "tls_to_the_page_of_metrics_is_refused",
        "tls_to_a_port_in_plain_text_is_refused",
    )
)
_PAGE: Final = "refused by benchmarks.inputs.refusals"
_HEAD: Final = """\
| refused because of | status | attempts |
|---|---|---|"""


def attempts_in(report: str) -> list[tuple[str, str, str]]:
    """The name, status and reason of each attempt, from the tests' report in JUnit's form."""
    # The report is one that pytest has just written.
    found = ElementTree.fromstring(report).iter("property")  # noqa: S314
    return [(each.attrib["name"], *_parts(each.attrib["value"])) for each in found]


def _parts(value: str) -> tuple[str, str]:
    status, reason = value.split()
    return status, reason


def table(attempts: Iterable[tuple[str, str, str]]) -> str:
    """The attempts as Markdown, by what refused them."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, status, reason in attempts:
        names.setdefault(("TLS" if reason == "handshake" else f"`{reason}`", status), []).append(name)
    return "\n".join([_HEAD, *(f"| {why} | {status} | {'; '.join(each)} |" for (why, status), each in names.items())])


def main() -> None:
    """Try all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n0",
            "-o",
            "junit_family=xunit1",
            f"--junitxml={report}",
            *_TESTS,
        ]
        if subprocess.run(command, check=False, cwd=_ROOT, stdout=sys.stderr).returncode:
            raise SystemExit("error: an attempt was not refused, or the tests could not be run")
        text = table(attempts_in(report.read_text()))
    publish(text, _PAGE, options.docs)


if __name__ == "__main__":
    main()
