"""Jobs of PyTorch scripts: what is refused before anything starts."""

from __future__ import annotations

import pytest
from conftest import Taihu


@pytest.mark.parametrize("command", [("train",), ("worker", "--rank", "0")], ids=" ".join)
def test_a_built_in_model_that_nobody_would_update_is_refused(command: tuple[str, ...], taihu: Taihu) -> None:
    done = taihu(*command, "--exchange", "ring", "--set", "exchange.returns=gradients")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: exchange.returns 'gradients': nobody would update a built-in model, which would learn nothing; leave "
        "exchange.returns out, or start a PyTorch script: taihu run SCRIPT.py"
    ]


def test_a_script_that_is_not_there_is_said_and_nothing_is_made(taihu: Taihu) -> None:
    done = taihu("run", "missing.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ["error: script missing.py: no such file; give the path of a Python script"]
