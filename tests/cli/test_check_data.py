"""`taihu check-data`: all defects at once, what can be trained on, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from taihu.cli.main import make_app
from taihu.core.process.entry import run_app

TABLE = """size,town,when,price
1.5,Wuxi,2024-01-01,3.5
?,Suzhou,2024-01-02,4.5
2.5,Wuxi,,5
3,Wuxi,2024-01-05,NA
1,2
4,Suzhou,2024-02-01,1.25
?,Suzhou,2024-02-01,1.25
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    with pytest.raises(SystemExit) as ended:
        run_app(make_app(), ["check-data", *arguments])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out.splitlines(), err


def test_a_table_with_defects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("h.csv").write_text(TABLE)
    code, out, err = run(capsys, "h.csv", "--json", "all.json")
    assert code == 2
    assert out == [
        "h.csv: row 5 ('2: 1,2'): has another number of fields than the 4 names; mend it, or quote what has "
        "separators",
        "h.csv: column size: the value is missing, 2 rows: 2, 7; fill it in or drop it, or set data.fill, for "
        "example ['size=most']",
        "h.csv: row 3, column when: the value is missing; fill it in or drop it, or set data.fill, for example "
        "['when=most']",
        "h.csv: row 4, column price: the value is missing; fill it in or drop it",
        "h.csv: 5 rows with a defect",
    ]
    assert err == "error: h.csv: 4 kinds of defects, see above\n"
    told = json.loads(Path("all.json").read_text())
    assert (told["can_be_trained_on"], told["parts"][0]["bad"]) == (False, 5)
    assert [each["samples"] for each in told["parts"][0]["defects"]] == [1, 2, 1, 1]
    fill = ["--set", "data.fill=median", "--set", "data.skip_bad=2"]
    code, out, err = run(capsys, "h.csv", *fill)
    assert (code, err) == (0, "")
    for line in (
        "4 samples for training, 1 for testing; inputs 4, 1 value",
        "column town: texts, one input each: Suzhou, Wuxi",
        "these data can be trained on",
    ):
        assert line in out
    assert any(line.startswith("column when: a date, in seconds since 1970; 17") for line in out)


def test_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image  # noqa: PLC0415 - not in every process that collects this test

    monkeypatch.chdir(tmp_path)
    for name in ("a/1.png", "a/2.png", "b/3.png", "b/4.png"):
        Path("photos", name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8 if name != "b/4.png" else 9)).save(Path("photos", name))
    Path("photos/a/2.png").write_bytes(Path("photos/a/2.png").read_bytes()[:40])
    code, out, _ = run(capsys, "./photos")
    assert code == 2
    assert any("photos/a/2.png" in line for line in out)
    assert any("photos/b/4.png" in line for line in out)
    np.savez("x.npz", x=np.zeros((10, 3)), y=np.arange(10) % 3)
    code, out, _ = run(capsys, "x.npz")
    assert (code, out[0]) == (0, "8 samples for training, 2 for testing; inputs 3, 3 classes")
    np.savez("x.npz", x=np.zeros((10, 3)), y=np.arange(9) % 3)
    code, out, err = run(capsys, "x.npz")
    assert (code, out) == (2, [])
    assert "9 targets" in err
    assert run(capsys, "none.csv")[2].startswith("error: none.csv: not found")
