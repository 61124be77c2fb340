"""A command that is no benchmark, whose rows get their births: `python -m benchmarks record COMMAND`.

Examples:
  python -m benchmarks record taihu simulate figure --all --out docs/figures --json benchmarks/results/figures.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.births.recorded import recorded

__all__ = ["main"]


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="with --json benchmarks/results/NAME.json")
    command = parser.parse_args().command
    if not command:
        parser.error("COMMAND is missing: the command that writes a file of benchmarks/results")
    with recorded(command):
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
