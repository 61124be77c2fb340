"""Scripts of Hugging Face's libraries by every way to start them: `python -m benchmarks huggingface --help`.

The examples run without taihu's lines in one process, whose batch is that of all, and over Gloo; with these lines
they run under `taihu run` and under torchrun. Each is the command that a user types.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.base.rows import load_rows, publish, save_rows

__all__ = ["BATCH", "EXAMPLES", "FOLDER", "losses_of", "ours", "plain", "table", "without_ours"]

FOLDER: Final = Path(__file__).parents[2] / "examples" / "huggingface"
EXAMPLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "trainer": "transformers.Trainer, backend `taihu`",
        "accelerate_loop": "accelerate, backend `taihu`",
        "sft": "TRL's SFTTrainer and LoRA, backend `taihu`",
        "lora_loop": "PEFT's LoRA, own loop, `DistributedOptimizer`",
        "trainer_optimizer": "transformers.Trainer, `DistributedOptimizer`",
    }
)
"""Libraries and ways by the names of the examples."""
BATCH: Final[Mapping[str, str]] = MappingProxyType({name: "16" for name in EXAMPLES if name != "lora_loop"})
"""`--batch` of one process that has the samples of two, by the examples whose batch is a process's."""
_PAGE: Final = "measured by benchmarks.pytorch.huggingface"
_OURS: Final = re.compile(
    r'^.*(?:taihu\.torch|"taihu"|os\.environ|import os$|for name in \("RANK").*\n', re.MULTILINE
)
_LOSS: Final = re.compile(r"^step (\d+): loss (\S+)$", re.MULTILINE)
_RUN: Final = ("-P", "-m", "taihu", "run", "--workers", "2", "--quiet", "--run-dir", "none")
# Lines of two ranks on one pipe tear each other.
_TORCHRUN: Final = (
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "--local-ranks-filter",
    "0",
)
_LIMIT_S: Final = 600.0


def ours(text: str) -> list[str]:
    """The lines of an example that are there because of taihu."""
    return [line.strip() for line in _OURS.findall(text)]


def plain(text: str) -> str:
    """An example without these lines, which is a script as its library's pages show it."""
    return _OURS.sub("", text)


def without_ours(folder: Path) -> Path:
    """The examples so, written to a new `folder`."""
    folder.mkdir()
    for path in FOLDER.glob("*.py"):
        (folder / path.name).write_text(plain(path.read_text()))
    return folder


def losses_of(output: str) -> dict[int, float]:
    """The losses that an example has told, by steps; of two ranks that tell the same step, either."""
    return {int(step): float(loss) for step, loss in _LOSS.findall(output)}


def _run(folder: Path, how: Sequence[str], script: Path, *arguments: str) -> dict[int, float]:
    done = subprocess.run(
        [sys.executable, *how, str(script), *arguments],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode or not (losses := losses_of(done.stdout)):
        raise SystemExit(f"error: {' '.join([*how, script.name])}: exit code {done.returncode}\n{done.stderr}")
    return losses


def _measure(name: str, folder: Path, plain_folder: Path) -> dict[str, Any]:
    script, without = FOLDER / f"{name}.py", plain_folder / f"{name}.py"
    batch = ("--batch", BATCH[name]) if name in BATCH else ()
    by_way = {"one process": _run(folder, (), without, *batch)}
    if '"taihu"' in script.read_text():
        by_way["Gloo"] = _run(folder, _TORCHRUN, without)
    by_way["taihu run"] = _run(folder, _RUN, script)
    by_way["torchrun"] = _run(folder, _TORCHRUN, script)
    reference = by_way.get("Gloo", by_way["one process"])
    apart = max(
        abs(by_way[way][step] - loss) / loss for way in ("taihu run", "torchrun") for step, loss in reference.items()
    )
    last = {way: losses[max(losses)] for way, losses in by_way.items()}
    return {"script": name, "lines": len(ours(script.read_text())), "last": last, "apart": apart}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a page shows them."""
    head = (
        "| script | what | lines | one process | Gloo | taihu run | torchrun | farthest apart |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    lines = []
    for row in rows:
        last = {way: f"{loss:.6f}" for way, loss in row["last"].items()}
        told = " | ".join(last.get(way, "") for way in ("one process", "Gloo", "taihu run", "torchrun"))
        apart = f"{row['apart']:.0e}" if row["apart"] else "0"
        lines.append(f"| `{row['script']}.py` | {EXAMPLES[row['script']]} | {row['lines']} | {told} | {apart} |")
    return head + "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks huggingface",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scripts", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    parser.add_argument("--json", type=Path, help="the rows; what is there is not run again")
    parser.add_argument("--markdown", type=Path, help="put the table into this page")
    options = parser.parse_args()
    rows = load_rows(options.json)
    there = [row["script"] for row in rows]
    with tempfile.TemporaryDirectory() as name:
        plain_folder = without_ours(Path(name) / "plain")
        for script in options.scripts:
            if script not in there:
                rows.append(_measure(script, Path(name), plain_folder))
                save_rows(options.json, rows)
                print(table(rows[-1:]), flush=True)
    publish(table(rows), _PAGE, options.markdown)


if __name__ == "__main__":
    main()
