"""A doctor that listens, on a machine whose clock or version is another one than this machine's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from taihu.core.process.entry import Interrupts
from taihu.core.wire.base.clock import WallClock
from taihu.doctor.collecting import machine_facts
from taihu.doctor.facts import MachineFacts
from taihu.doctor.service import ListeningDoctor


def main(bind: str, ahead_s: str, version: str) -> None:
    """Listen at `bind` until SIGTERM, `ahead_s` seconds ahead, as taihu of this version, or of its own for ""."""
    clock = WallClock()
    clock.jump(float(ahead_s))

    def facts(names: Sequence[str]) -> MachineFacts:
        own = machine_facts(names)
        return replace(own, versions={**own.versions, "taihu": version}) if version else own

    interrupts = Interrupts()
    interrupts.install()
    interrupts.are_no_error()
    with ListeningDoctor(bind, facts, clock):
        print("listening", flush=True)  # noqa: T201
        interrupts.await_end()


if __name__ == "__main__":
    main(*sys.argv[1:])
