"""Advice to scripts about the momentum of their optimizers behind compressed gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from taihu.core.job.reading import load_job, parse_assignments
from taihu.torch.advice import advice_on_optimizer

DLGS = "compression.method=dlgs"
SCRIPT = """
import torch
import taihu.torch
model = torch.nn.Linear(100, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum={momentum})
optimizer = taihu.torch.DistributedOptimizer(optimizer, model)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 100)).square().mean().backward()
    optimizer.step()
"""


def said(optimizer: type[torch.optim.Optimizer], given: list[str], **options: object) -> list[str]:
    job = load_job(None, parse_assignments(given))
    return list(advice_on_optimizer(job, optimizer([torch.zeros(3, requires_grad=True)], lr=0.1, **options)))


@pytest.mark.parametrize(
    ("optimizer", "options", "words"),
    [
        (
            torch.optim.AdamW,
            {},
            "AdamW has betas=(0.9, 0.999) .* it betas=(0.0, 0.999) and a learning rate 2 to 3",
        ),
        (torch.optim.Adam, {"betas": (0.8, 0.95)}, "Adam has betas=(0.8, 0.95) .* give it betas=(0.0, 0.95) and"),
        (
            torch.optim.SGD,
            {"momentum": 0.9},
            "SGD has momentum=0.9 .* momentum=0.0 and a learning rate 5 times",
        ),
        (torch.optim.SGD, {"momentum": 0.3}, "momentum=0.3 .* give it momentum=0.0, or set"),
        (torch.optim.SGD, {}, None),
        (torch.optim.AdamW, {"betas": (0.0, 0.999)}, None),
        (torch.optim.Adagrad, {}, None),
    ],
)
def test_a_script_is_told_what_to_write_in_place_of_its_momentum(
    optimizer: type[torch.optim.Optimizer], options: dict[str, object], words: str | None
) -> None:
    lines = said(optimizer, [DLGS], **options)
    assert len(lines) == (words is not None)
    for part in (words or "").split(" .* "):
        assert part in "".join(lines)


@pytest.mark.parametrize(
    "given", [[], [DLGS, "compression.density=0.11"], [DLGS, "compression.momentum_at=servers"]], ids=str
)
def test_momentum_that_helps_or_was_asked_for_is_not_spoken_of(given: list[str]) -> None:
    assert said(torch.optim.AdamW, given) == []


def test_momentum_of_sgd_helps_at_densities_at_which_beta1_does_not() -> None:
    tenth = [DLGS, "compression.density=0.1"]
    assert said(torch.optim.SGD, tenth, momentum=0.9) == []
    assert len(said(torch.optim.AdamW, tenth)) == 1


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_the_warning_names_the_line_of_the_script_once(tmp_path: Path, momentum: float) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(momentum=momentum))
    flags = ["--workers", "2", "--compression", "dlgs", "--run-dir", "none"]
    command = [sys.executable, "-P", "-m", "taihu", "run", *flags, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    told = f"{script}:6: UserWarning: SGD has momentum=0.9 behind compression at density 0.01"
    assert (done.stdout + done.stderr).count(told) == (momentum > 0)
    kept = subprocess.run(
        [*command[:-1], "--set", "compression.momentum_at=servers", str(script)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "UserWarning" not in kept.stdout + kept.stderr
