"""The compression that a run has chosen: as members tell it each other, and checkpoints keep it."""

from __future__ import annotations

import json
from collections.abc import Mapping

from taihu.core.base.errors import ConfigError
from taihu.core.job.job import Job
from taihu.core.job.reading import revised
from taihu.core.settings import CompressionSettings


def with_compression(job: Job, table: Mapping[str, str]) -> Job:
    """`job` with the settings of `[compression]` that `table_of` wrote; without any it is as it is.

    Raises:
        ConfigError: they are none.
    """
    if not table:
        return job
    try:
        values = {key: json.loads(value) for key, value in table.items()}
    except ValueError:
        raise ConfigError(
            "the compression that was chosen cannot be read: are all processes of one version?"
        ) from None
    known = job.compression.model_dump(mode="json")
    # What is there already was not given, as far as the job says so.
    return revised(job, "compression", **{key: value for key, value in values.items() if value != known.get(key)})


def table_of(settings: CompressionSettings) -> dict[str, str]:
    """All settings by key, each value as JSON."""
    return {key: json.dumps(value) for key, value in settings.model_dump(mode="json").items()}
