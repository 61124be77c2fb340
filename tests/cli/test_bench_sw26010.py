"""`taihu dev bench sw26010`: what it writes, and what it tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from taihu.cli.bench.sw26010 import shares_of, sw26010
from taihu.cli.main import make_app
from taihu.core.base.errors import ConfigError, ModelError
from taihu.core.process.entry import run_app
from taihu.kernels.sw26010.product import plan_product

_KEYS = {
    "kernel",
    "configuration",
    "modelled_gflops",
    "efficiency",
    "limited_by",
    "seconds",
    "dma_bytes",
    "broadcasts",
    "refused",
}


def _rows(path: Path, **options: Any) -> list[dict[str, Any]]:
    file = path / "sw26010.json"
    sw26010(json_file=file, **options)
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    assert all(row.keys() == _KEYS for row in rows)
    return rows


@pytest.mark.parametrize(("kernel", "itemsize"), [("dgemm", 8), ("sgemm", 4)])
def test_products(tmp_path: Path, kernel: Literal["dgemm", "sgemm"], itemsize: int) -> None:
    rows = _rows(tmp_path, kernel=kernel)
    last = rows[-1]
    ledger = plan_product(16384, 16384, 16384, itemsize=itemsize).cost()
    assert (last["kernel"], last["configuration"]) == (kernel, "16384x16384x16384")
    assert last["modelled_gflops"] == ledger.gflops
    assert last["limited_by"] == ledger.limited_by
    assert last["modelled_gflops"] == pytest.approx(last["efficiency"] * 765.6)


def test_refused_configurations_stay_in_the_table_with_their_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _rows(tmp_path, kernel="conv")
    refused = [row for row in rows if row["refused"]]
    assert [row["configuration"][:12] for row in refused] == ["B=128 Ni=48 ", "B=128 Ni=512"]
    assert all(row["modelled_gflops"] is None for row in refused)
    text = capsys.readouterr().out
    assert "refused: 48 input channels: expected at least 64 and a multiple of 32" in text
    assert "4 convolutions: median" in text


def test_the_measured_configurations_stand_beside_the_published_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _rows(tmp_path, kernel="conv", grid="swdnn")
    assert len(rows) == 172
    assert "published: median 1285 GFLOP/s, 708 to 1498" in capsys.readouterr().out


def test_all_kernels(tmp_path: Path) -> None:
    kernels = {row["kernel"] for row in _rows(tmp_path)}
    expected = {"dgemm", "sgemm", "conv", "max pooling", "batch norm", "sgd with momentum", "ring addition"}
    assert kernels == expected | {"top-k threshold"}


def test_convolutions_compute_and_fully_connected_layers_hold_the_parameters() -> None:
    """AlexNet by hand, forward and two gradients: 1.9 G of 2.1 G multiplications, 58.6 M of 61.0 M parameters."""
    maps = [55 * 55 * 11 * 11 * 3 * 96 * 2 / 3, 27 * 27 * 25 * 48 * 256, 13 * 13 * 9 * 256 * 384]
    maps += [13 * 13 * 9 * 192 * 384, 13 * 13 * 9 * 192 * 256]
    fc = [9216 * 4096, 4096 * 4096, 4096 * 1000]
    conv_share, held = sum(maps) / sum([*maps, *fc]), (sum(fc) + 2 * 4096 + 1000) / 60_965_224
    assert shares_of("alexnet") == (
        f"alexnet: convolutions {conv_share:.1%} of its products, {1 - held:.1%} of its parameters; "
        f"fully connected layers {1 - conv_share:.1%} of its products, {held:.1%}"
    )


def test_layers_of_a_model(tmp_path: Path) -> None:
    rows = _rows(tmp_path, model="small_cnn", batch=16, core_groups=2)
    layers, total = rows[:-1], rows[-1]
    assert [row["kernel"] for row in layers[::2]] == ["conv", "relu", "conv", "relu", "pool", "fc", "relu", "fc"]
    assert total["kernel"] == "small_cnn"
    assert total["seconds"] == pytest.approx(sum(row["seconds"] for row in layers))


def test_wrong_usage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="unknown model resnet21; did you mean resnet20"):
        sw26010(model="resnet21")
    with pytest.raises(ConfigError, match="is not a folder that can be written"):
        sw26010(json_file=tmp_path / "nowhere" / "rows.json")


def test_the_command_is_registered_and_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        run_app(make_app(), ["dev", "bench", "sw26010", "--help"])
    assert "taihu dev bench sw26010 --kernel conv --grid swdnn" in capsys.readouterr().out
