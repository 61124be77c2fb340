"""A kernel is compiled once, however many processes want it at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KERNELS = """
from kernels.jit import kernel

@kernel
def inner(x):
    return x + 1

@kernel
def outer(x):
    total = 0.0
    for i in range(x):
        total += inner(i) ** 0.5
    return total
"""
# Forks that begin at once; each tells what it compiled and what it loaded.
RACE = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from slow import inner, outer
from kernels.reduce import warm_up
warm_up()
ready, go = os.pipe()
told, tell = os.pipe()
for _ in range(3):
    if not os.fork():
        os.close(go)
        os.read(ready, 1)
        value = outer(4)
        compiled = [sum(each.stats.cache_misses.values()) for each in (inner, outer)]
        os.write(tell, json.dumps([value, *compiled]).encode() + b"\\n")
        os._exit(0)
os.close(go)
os.close(tell)
print(open(told).read())
while True:
    try:
        assert os.wait()[1] == 0
    except ChildProcessError:
        break
"""


def test_one_process_compiles_and_the_others_load(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(KERNELS)
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.strip().splitlines()]
    assert len(rows) == 3
    assert len({value for value, *_ in rows}) == 1
    assert sum(inner for _, inner, _ in rows) == 1
    assert sum(outer for _, _, outer in rows) == 1
