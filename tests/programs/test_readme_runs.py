"""The commands of README.md and two pages as a user who is not root types them: the wheel, and an empty folder.

Lines stand on those before them: each page has its folder, and each line is a test.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from support.other_user import OtherUser, installed_for_another_user
from support.readme import README, Command, commands, files, typed

# Enough steps for a plan, and as few processes as the command leaves open.
FEW: Final = {
    "TAIHU_TRAIN__STEPS": "12",
    "TAIHU_EXCHANGE__CALIBRATION_STEPS": "4",
    "TAIHU_CLUSTER__SERVERS": "1",
    "TAIHU_CLUSTER__WORKERS": "2",
    "TAIHU_CLUSTER__THREADS": "1",
    # Kernels of all these commands are compiled for the first time, by processes that share few cores.
    "TAIHU_CLUSTER__LOST_AFTER_S": "120",
}
# A text model takes a quarter of a second for a letter where the machine is busy.
_LONGEST_S: Final = 900.0
NOT_HERE: Final = ("make", ".", "cd", "git")
EXAMPLES: Final = README.parent / "examples"
# What `needs` of a line can be had.
HERE: Final = {
    "files": True,
    "torch": importlib.util.find_spec("torch") is not None,
    "fashion-mnist": Path("/usr/share/datasets/fashion-mnist").exists(),
}
# The files that docs/guide.md says a user has.
OWN_FILES: Final = """
import csv
from pathlib import Path

import numpy as np
from PIL import Image

rng = np.random.default_rng(0)
y = rng.integers(0, 3, 200)
x = np.full((200, 12, 12, 3), 100, np.uint8) + rng.integers(0, 20, (200, 1, 1, 3), dtype=np.uint8)
x[np.arange(200), 4 * y] = 200
np.savez("arrays.npz", x_train=x[:150], y_train=y[:150], x_test=x[150:], y_test=y[150:])
for number, (pixels, label) in enumerate(zip(x, y)):
    folder = Path("photos") / f"stripe{label}"
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / f"{number}.jpg")
Path("new").mkdir()
for number in range(3):
    Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(f"new/{number}.png")
with open("houses.csv", "w", newline="") as file:
    csv.writer(file).writerow(["size", "town", "price"])
    csv.writer(file).writerows([n / 7, "Wuxi" if n % 2 else "Suzhou", n] for n in range(90))
Path("prompt.txt").write_text("def main(")
with open("mine.py", "a") as file:
    file.write("def load():\\n    import numpy\\n    x = numpy.ones((80, 8, 8, 1), 'f4')\\n")
    file.write("    return (x, numpy.arange(80) % 2), None\\n")
"""
BEFORE: Final = {
    "README.md": "true",
    "docs/guide.md": "taihu train --model small_gpt --data python-source --save gpt.safetensors --run-dir none",
    "docs/data.md": "true",
}


@dataclass
class Page:
    """A page whose lines run in their order, each once."""

    user: OtherUser
    folder: Path
    lines: list[Command]
    place: int = 0

    def run_to(self, line: int) -> None:
        """Run all lines up to this one."""
        while self.place <= line:
            command = self.lines[self.place]
            self.place += 1
            self.run(command.text)

    def run(self, line: str) -> None:
        """Run a line to its end, which has to be good."""
        done = self.user.run(line, self.folder, {} if line.startswith("taihu dev bench") else FEW, _LONGEST_S)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert "is ended" not in done.stdout, done.stdout
        assert "Traceback" not in done.stderr, done.stderr


def lines_of(page: str) -> list[Command]:
    """Those that can be run here."""
    found = commands((README.parent / page).read_text(encoding="utf-8"))
    programs = ((each, each.text.split()[0]) for each in found if all(HERE.get(need, False) for need in each.needs))
    return [each for each, program in programs if program not in NOT_HERE]


LINES: Final = {page: lines_of(page) for page in BEFORE}


@pytest.fixture(scope="session")
def user() -> Iterator[OtherUser]:
    """A user who finds taihu installed."""
    with installed_for_another_user() as found:
        yield found


@pytest.fixture(scope="session")
def page_of(user: OtherUser) -> Callable[[str], Page]:
    """A page by its name, in a folder with the files that it shows, and those that it has its reader make."""

    @cache
    def made(name: str) -> Page:
        text = (README.parent / name).read_text(encoding="utf-8")
        is_guide = name == "docs/guide.md"
        page = Page(user, user.folder(Path(name).stem), LINES[name])
        own = {"typed.py": OWN_FILES if is_guide else typed(text)}
        for file, content in {**(files(text) if is_guide else files(text, {})), **own}.items():
            user.write(page.folder / file, content)
        shutil.copytree(EXAMPLES, page.folder / "examples")
        page.run("python typed.py")
        page.run(BEFORE[name])
        return page

    return made


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    ("page", "line"),
    [
        pytest.param(page, line, id=f"{page}: {each.text}")
        for page, lines in LINES.items()
        for line, each in enumerate(lines)
    ],
)
def test_a_line_runs_as_printed(page: str, line: int, page_of: Callable[[str], Page]) -> None:
    page_of(page).run_to(line)


def test_there_are_lines() -> None:
    assert len(LINES["docs/guide.md"]) >= 32  # without torch and Fashion-MNIST
    assert len(LINES["docs/data.md"]) == 8
