"""A kernel is compiled once, however many processes want it at once; who loads it needs no compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from numba.core.dispatcher import Dispatcher

from taihu.kernels import group_search, reduce
from taihu.kernels.base.jit import sources_stamp

KERNELS = """
from taihu.kernels.base.jit import kernel

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
from taihu.kernels.reduce import warm_up
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
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.strip().splitlines()]
    assert len(rows) == 3
    assert len({value for value, *_ in rows}) == 1
    assert sum(inner for _, inner, _ in rows) == 1
    assert sum(outer for _, _, outer in rows) == 1


PARTS = """
from taihu.kernels.base.jit import kernel, kernel_part

@kernel_part
def inner(x):
    return x + 1

@kernel
def outer(x):
    return inner(x) * 2
"""
CALLS = """
import sys
sys.path.insert(0, sys.argv[1])
from parts import inner, outer
def refused():
    try:
        inner(3)
    except TypeError as error:
        return str(error)
print(refused(), outer(3), refused(), sum(outer.stats.cache_misses.values()), sep="\\n")
"""


def test_parts_of_kernels_are_compiled_and_loaded_with_them_and_refuse_python(tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    refused = "inner: called by Python, expected a kernel; declare it with @kernel"
    for compiled in ("1", "0"):
        command = [sys.executable, "-c", CALLS, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.stdout.splitlines() == [refused, "8", refused, compiled], done.stderr


# Loads what is in the cache: one overload of each kernel, as many as there are by now.
LOADER = """
import importlib, pkgutil, sys
import taihu.kernels
from numba.core.registry import CPUDispatcher
found = []
for module in pkgutil.walk_packages(taihu.kernels.__path__, "taihu.kernels."):
    for each in vars(importlib.import_module(module.name)).values():
        if isinstance(each, CPUDispatcher) and each.py_func.__module__ == module.name:
            here = each.targetctx.codegen().magic_tuple()
            cached = [key[0] for key in each._cache._cache_file.overloads() if key[1] == here]
            for signature in cached[:1]:
                each.compile(signature)
                found.append(each)
assert not any(each.stats.cache_misses for each in found)
# It comes with the registration of everything that can be compiled.
assert "numba.typed.typeddict" not in sys.modules
# Parts of `search` are numba's own, from modules that import SciPy's linear algebra.
assert "search" in [each.py_func.__name__ for each in found]
assert "numba.np.arraymath" not in sys.modules
print(len(found))
"""


def test_kernels_are_loaded_by_a_process_that_cannot_compile_yet() -> None:
    reduce.warm_up()
    group_search.warm_up()
    command = [sys.executable, "-c", LOADER]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2


def test_machine_code_does_not_outlive_what_it_was_made_from(tmp_path: Path) -> None:
    """A kernel holds the code of those that it calls: a change of any file of the package makes all anew."""
    (tmp_path / "nn").mkdir()
    for name in ("blocks.py", "nn/products.py"):
        (tmp_path / name).write_text("LANES = 8")
        os.utime(tmp_path / name, ns=(10, 10))
    before = sources_stamp.__wrapped__(tmp_path)
    (tmp_path / "nn/products.py").write_text("LANES = 9")
    os.utime(tmp_path / "nn/products.py", ns=(10, 11))
    changed = sources_stamp.__wrapped__(tmp_path)
    (tmp_path / "more.py").write_text("LANES = 8")
    os.utime(tmp_path / "more.py", ns=(10, 5))
    assert len({before, changed, sources_stamp.__wrapped__(tmp_path)}) == 3
    of_package = sources_stamp(Path(reduce.__file__).parent)
    kernels: list[Any] = [value for value in vars(reduce).values() if isinstance(value, Dispatcher)]
    assert kernels
    assert all(each._cache._cache_file.source_stamp[1] == of_package for each in kernels)
