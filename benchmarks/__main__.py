"""Long runs beside the test suite, each by its name.

Examples:
  python -m benchmarks                          # all names, by room
  python -m benchmarks transports --help
  python -m benchmarks torch_curves --json benchmarks/results/torch_curves.json
"""

from __future__ import annotations

import ast
import difflib
import runpy
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from benchmarks.births.recorded import recorded

__all__ = ["main", "runs"]

_HERE = Path(__file__).parent
# Its own command is another one's.
_RECORD = "benchmarks.births.record"


def runs() -> Mapping[str, Path]:
    """The file of each benchmark that can be run, by its name."""
    found = sorted([*_HERE.glob("*/*.py"), *_HERE.glob("*/*/__main__.py")])
    return {_name(path): path for path in found if 'if __name__ == "__main__":' in path.read_text()}


def main(arguments: list[str]) -> int:
    """Run a benchmark, or tell which there are; 2 for a name that is none."""
    known = runs()
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(__doc__)
        for room in dict.fromkeys(_room(path) for path in known.values()):
            print(f"{room}: {_first_line(_HERE / room / '__init__.py')}")
            for name, path in known.items():
                if _room(path) == room:
                    print(f"  {name:<24} {_first_line(path)}")
        return 0
    name, *rest = arguments
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        meant = f"; did you mean {near[0]}?" if near else "; see python -m benchmarks"
        print(f"error: {name}: no benchmark of that name{meant}", file=sys.stderr)
        return 2
    module = ".".join(known[name].relative_to(_HERE.parent).with_suffix("").parts).removesuffix(".__main__")
    # Benchmarks of containers share modules with deploy's scripts, which import them by their bare names.
    sys.path.insert(1, str(_HERE.parent / "deploy" / "k8s"))
    sys.argv[:] = [str(known[name]), *rest]
    with recorded(["python", "-m", "benchmarks", *arguments]) if module != _RECORD else nullcontext():
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _name(path: Path) -> str:
    return path.parent.name if path.stem == "__main__" else path.stem


def _room(path: Path) -> str:
    return path.relative_to(_HERE).parts[0]


def _first_line(path: Path) -> str:
    words = ast.get_docstring(ast.parse(path.read_text())) or ""
    line = words.partition("\n")[0]
    return line.partition(": `python -m benchmarks")[0].rstrip(".") + "."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
