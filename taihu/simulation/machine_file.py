"""The machines that a network's name or file describes."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, TypeVar

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import parse_bytes, parse_rate
from taihu.simulation.machines import Machines, Network, ethernet, taihulight

EXAMPLE: Final = """\
[network]
alpha_seconds = 50e-6           # of a message, beside its bytes
rate = "10gbit"                 # of a host's port each way; or bytes_per_second
# full_duplex = false           # sends or receives at a time
# message_seconds = 5e-6        # a port is busy with a message, beside its bytes
# supernode = 256               # hosts that are joined at full speed
# oversubscription = 4          # ports of a supernode over what leads out of it
# supernode_alpha_seconds = 1e-6
# jitter = 0.2                  # of alpha, as the deviation of its logarithm
# loss_ratio = 1e-4             # messages that are sent again, retransmit_seconds later

[machines]
add_bytes_per_second = 4e9      # gradients that a host adds
# selected_value_seconds = 8e-9 # to unpack, add up or pack a value that was selected
# jitter = 0.05                 # of compute, from step to step
# stragglers = 1                # workers that take straggler_slowdown times as long
# straggler_slowdown = 2
# hosts = 8                     # how many there are; without it, one for every process
# memory = "16GB"               # free on a host; or memory_bytes
# shared_cores = 2              # of one machine that all hosts are on
# core_bytes_per_second = 2e9   # of messages that one of them sends or takes in
# core_message_seconds = 1e-4   # of one of them, at each end of a message
# core_compute_share = 1        # of compute that one of them does, and not a processor of its own
"""

_ETHERNET: Final = "ethernet:"
_LARGEST: Final = 1e30
_TABLES: Final = ("network", "machines")

Part = TypeVar("Part", Network, Machines)


def named_machines(name: str, option: str = "--network") -> tuple[Network, Machines] | None:
    """The machines called `taihulight` or `ethernet:RATE`, as `option` says; None for other names, which are files.

    Raises:
        ConfigError: the rate is none.
    """
    if name == "taihulight":
        return taihulight()
    if not name.startswith(_ETHERNET):
        return None
    rate = parse_rate(name.removeprefix(_ETHERNET))
    if rate is None or not rate:
        raise ConfigError(f"{option} {name}: expected a rate with kbit, mbit or gbit, for example ethernet:1gbit")
    return ethernet(rate)


def machines_in(text: str, name: str) -> tuple[Network, Machines]:
    """The machines that a TOML file `name` describes, as `EXAMPLE` does.

    Raises:
        ConfigError: it is no TOML, has unknown keys or values of other types or ranges, or lacks one.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not TOML: {error}") from None
    _check_known(name, "", tables, _TABLES)
    network = dict(_table(name, tables, "network"))
    if "rate" in network:
        rate = parse_rate(str(network.pop("rate")))
        if not rate or "bytes_per_second" in network:
            raise ConfigError(
                f"{name}: network.rate: expected one such as '10gbit', and no bytes_per_second beside it"
            )
        network["bytes_per_second"] = ethernet(rate)[0].bytes_per_second
    machines = dict(_table(name, tables, "machines"))
    if "memory" in machines:
        size = parse_bytes(str(machines.pop("memory")))
        if not size or "memory_bytes" in machines:
            raise ConfigError(f"{name}: machines.memory: expected one such as '16GB', and no memory_bytes beside it")
        machines["memory_bytes"] = size
    try:
        return (
            _make(Network, name, "network", {"name": name, **network}),
            _make(Machines, name, "machines", machines),
        )
    except ConfigError as error:
        raise ConfigError(f"{name}: {str(error).removeprefix(f'{name}: ')}") from None


def _table(name: str, tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = tables.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name}: {key}: expected a table, [{key}]")
    return table


def _make(kind: type[Part], name: str, table: str, values: Mapping[str, Any]) -> Part:
    known = {field.name: field for field in fields(kind)}
    _check_known(name, f"{table}.", values, tuple(known))
    for key, value in values.items():
        _check_type(f"{table}.{key}", str(known[key].type), value)
    missing = [key for key, field in known.items() if field.default is MISSING and key not in values]
    if missing:
        wanted = "rate or bytes_per_second" if missing[0] == "bytes_per_second" else missing[0]
        raise ConfigError(f"{name}: {table}.{wanted} is missing; `taihu simulate run --help` shows an example")
    return kind(**values)


def _check_known(name: str, prefix: str, values: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{name}: unknown key {prefix}{key}; {hint}")


def _check_type(key: str, kind: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": is_number,
        "str": isinstance(value, str),
    }
    if isinstance(value, int | float) and _LARGEST < abs(value) < math.inf:
        raise ConfigError(f"{key}: expected a number of at most {_LARGEST:g}")
    if not fits[kind]:
        expected = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}[kind]
        raise ConfigError(f"{key} {value!r}: expected {expected}")
