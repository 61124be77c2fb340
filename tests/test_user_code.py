"""Functions from files of the user's own: what they can import, and how their mistakes are told."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from taihu.core.base.errors import ConfigError, DataError, RunError
from taihu.core.process.programs.user_code import explained, load_function, own_mistakes_told, user_line


@pytest.fixture(autouse=True)
def _imports_of_one_test() -> Iterator[None]:
    modules, finders = dict(sys.modules), list(sys.meta_path)
    yield
    sys.modules.clear()
    sys.modules.update(modules)
    sys.meta_path[:] = finders


def write(folder: Path, **files: str) -> None:
    """Each text as NAME.py."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def test_modules_beside_the_file_are_imported_when_it_loads_and_later(tmp_path: Path) -> None:
    write(
        tmp_path,
        mine="import near\ndef now(): return near.VALUE\ndef later():\n import far\n return far.VALUE\n",
        near="VALUE = 'near'\n",
        far="from inside import here\nVALUE = here.VALUE\n",
    )
    write(tmp_path / "inside", __init__="", here="VALUE = 'inside'\n")
    path = list(sys.path)
    assert load_function(f"{tmp_path}/mine.py:now")() == "near"
    assert load_function(f"{tmp_path}/mine.py:later")() == "inside"
    assert sys.path == path


def test_files_beside_it_never_stand_in_the_place_of_packages(tmp_path: Path) -> None:
    mark = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"
    files = dict.fromkeys(("taihu", "rich", "json", "colorsys"), mark)
    write(
        tmp_path,
        mine="import taihu, rich, json, colorsys\nfiles = [m.__file__ for m in (taihu, rich)]\n"
        "def function(): return files\n",
        **files,
    )
    assert all(Path(file).parent.parent != tmp_path for file in load_function(f"{tmp_path}/mine.py:function")())
    assert not list(tmp_path.glob("*.ran"))


def test_two_folders_have_helpers_of_the_same_name(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, mine="import helper\ndef get(): return helper.VALUE\n", helper=f"VALUE = '{name}'\n")
    first = load_function(f"{tmp_path}/a/mine.py:get")
    second = load_function(f"{tmp_path}/b/mine.py:get")
    assert (first(), second(), load_function(f"{tmp_path}/a/mine.py:get")()) == ("a", "b", "a")


def test_paths_begin_in_the_current_folder_or_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "models", mine="import helper\ndef get(): return helper.VALUE\n", helper="VALUE = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_function("models/mine.py:get")() == load_function("~/models/mine.py:get")() == 3
    monkeypatch.chdir(tmp_path / "models")
    assert load_function("mine.py:get")() == 3


MISTAKES = {
    "import no_such\n": "mine.py line 1: ModuleNotFoundError: No module named 'no_such'",
    "x = 1\ny = (\n": "mine.py line 2: SyntaxError: '(' was never closed",
    "\n\nvalue = undefined\n": "mine.py line 3: NameError: name 'undefined' is not defined",
    "import sys\nsys.exit(3)\n": "mine.py line 2: SystemExit: 3",
    "import helper\n": "helper.py line 2: ZeroDivisionError: division by zero",
    "import broken\n": "broken.py line 1: SyntaxError: invalid syntax",
    "def f():\n  raise KeyError\n": "mine.py line 2: KeyError",
    "import json\ndef f():\n\n  return json.loads('{')\n": "mine.py line 4: JSONDecodeError: Expecting property name "
    "enclosed in double quotes: line 1 column 2 (char 1)",
    "\ndef f(a): pass\n": "mine.py line 2: TypeError: f() missing 1 required positional argument: 'a'",
    "def f():\n  raise ValueError('two\\n  lines')\n": "mine.py line 2: ValueError: two lines",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_told_with_file_line_and_cause(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, mine=text, helper="\n1 / 0\n", broken="def\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as caught:
        load_function("mine.py:f", thing="data", error=DataError)()
    assert str(caught.value) == f"data {MISTAKES[text]}"


def test_an_error_that_came_through_a_file_of_the_users_has_its_line(tmp_path: Path) -> None:
    write(tmp_path, mine="class Rows:\n  def __len__(self):\n    return 1 / 0\n")
    rows = load_function(f"{tmp_path}/mine.py:Rows")()
    with pytest.raises(ZeroDivisionError) as caught:
        len(rows)
    assert user_line(caught.value) == f"{tmp_path}/mine.py line 3: ZeroDivisionError: division by zero"


def test_the_traceback_goes_to_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, mine="def f():\n  return 1 / 0\n")
    lines: list[structlog.typing.EventDict] = []

    def keep(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        lines.append(event)
        raise structlog.DropEvent

    try:
        structlog.configure(processors=[structlog.processors.format_exc_info, keep])
        with pytest.raises(ConfigError):
            load_function(f"{tmp_path}/mine.py:f", thing="model")()
    finally:
        structlog.reset_defaults()
    assert [line["event"] for line in lines] == ["model failed"]
    assert "return 1 / 0" in lines[0]["exception"]
    with pytest.raises(ConfigError) as caught:
        load_function(f"{tmp_path}/mine.py:f")()
    assert capfd.readouterr() == ("", "")
    assert "return 1 / 0" in "".join(traceback.format_exception(caught.value))


def test_what_ends_the_run_is_no_mistake_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^interrupted$"), explained(tmp_path / "mine.py"):
        raise RunError("interrupted")
    assert user_line(RunError("nobody's")) is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("none.py:f", r"data file none\.py does not exist; give path/to/file\.py:function"),
        ("none", r"data file none does not exist"),
        (":f", r"data file :f does not exist"),
        (".:f", r"data file \. does not exist"),
        ("text.txt:f", r"data file text\.txt is not a Python file"),
        ("mine.py:g", r"has no function 'g' \(it has: f\); give mine\.py:function with f\(\) -> pair"),
        ("mine.py:", r"has no function '' \(it has: f\)"),
        ("mine.py:number", r"has no function 'number' \(it has: f\)"),
    ],
)
def test_what_is_no_function_in_a_file(
    spec: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, mine="import os\nfrom os.path import join\nnumber = 3\ndef f(): pass\n")
    (tmp_path / "text.txt").touch()
    with pytest.raises(DataError, match=message) as caught:
        load_function(spec, thing="data", error=DataError, signature="f() -> pair")
    assert os.linesep not in str(caught.value)


def test_what_passes_through_the_users_code_in_training_is_told_with_its_line(tmp_path: Path) -> None:
    write(
        tmp_path,
        mine="class Broken:\n def forward(self):\n  raise ValueError('my own')\n\ndef build(): return Broken()\n",
    )
    layer = load_function(f"{tmp_path / 'mine.py'}:build")()
    structlog.configure()
    with (
        structlog.testing.capture_logs() as logs,
        pytest.raises(RunError, match=r"mine\.py line 3: ValueError: my own"),
        own_mistakes_told(),
    ):
        layer.forward()
    assert isinstance(logs[0]["exc_info"], ValueError)
    with pytest.raises(ZeroDivisionError), own_mistakes_told():
        raise ZeroDivisionError
    with pytest.raises(DataError, match="known"), own_mistakes_told():
        raise DataError("known")


POOLS = """
import multiprocessing
import numpy as np
from near import double

def square(n):
    return n * n

def load():
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            # Of the file itself, of one beside it, and once more, as each task is asked for by name.
            got = [pool.map(square, range(4)), pool.map(double, range(4)), pool.map(square, [5])]
        assert got == [[0, 1, 4, 9], [0, 2, 4, 6], [25]], (method, got)
    x = np.zeros((8, 4), np.float32)
    return (x, np.arange(8) % 2), (x, np.arange(8) % 2)
"""


def test_processes_that_the_file_starts_find_it_and_those_beside_it(tmp_path: Path) -> None:
    write(tmp_path, mine=POOLS, near="def double(n): return 2 * n\n")
    # Not by its name in the process that starts them: that is a command of taihu's, run as a package.
    begun = [sys.executable, "-P", "-m", "taihu", "check-data", "mine.py:load"]
    done = subprocess.run(begun, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_that_imports_what_was_at_the_top_is_told_where_it_is_now(tmp_path: Path) -> None:
    write(tmp_path, mine="from ps_server.engine import Conv2d\n")
    with pytest.raises(
        ConfigError, match=r"mine\.py line 1: .*'ps_server.*'; what taihu has .* imported as taihu\.engine"
    ):
        load_function(f"{tmp_path}/mine.py:function")
