"""The measured costs of a run, in the file that it wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taihu.core.base.errors import ConfigError
from taihu.core.planner.profile import Compression, Profile


@dataclass(frozen=True)
class Measured:
    """The profile of a run, and how that ran.

    Attributes:
        profile: its costs.
        compression: its own.
        recompute: its setting, and the number of its segments; None where the file does not tell.
    """

    profile: Profile
    compression: Compression
    recompute: tuple[str, int | None] | None = None


def load_measured(path: Path) -> Measured:
    """The profile in a file, bare or under the key `profile` of the results of a training, and how that ran.

    Raises:
        ConfigError: the file cannot be read, is no JSON, or holds no valid profile.
    """
    try:
        data = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error}); give what taihu train --json wrote") from None
    results = data if isinstance(data, dict) and "profile" in data else {"profile": data}
    if results["profile"] is None:
        remedy = "train for more than exchange.calibration_steps steps, and not in fp16"
        raise ConfigError(f"{path}: the run has no profile; {remedy}")
    try:
        return Measured(
            Profile.from_json(results["profile"]), Compression.of_results(results), _recompute_of(results)
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _recompute_of(results: Mapping[str, Any]) -> tuple[str, int | None] | None:
    way, segments = results.get("recompute"), results.get("recompute_segments")
    if way is None:
        return None
    if not isinstance(way, str) or not (segments is None or isinstance(segments, int)):
        raise ConfigError(f"recompute {way!r}, recompute_segments {segments!r}: expected a text and a number")
    return way, segments
