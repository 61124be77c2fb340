"""The job: what one run is, the same on a laptop and on a hundred machines.

A key can be given in several places, of which later ones win: the file; for one process of several what its launcher
sets (`WORLD_SIZE`, `DMLC_NUM_WORKER`, ...; see `taihu.core.job.environment`); `TAIHU_SECTION__KEY`; `--set
section.key=value`; a flag.
"""

from taihu.core.job.job import Job, setting_keys, setting_tables
from taihu.core.job.reading import Overrides, load_job, parse_assignments, revised
from taihu.core.job.settled import settled
from taihu.core.job.toml import job_to_toml, parse_value, toml_value

__all__ = [
    "Job",
    "Overrides",
    "job_to_toml",
    "load_job",
    "parse_assignments",
    "parse_value",
    "revised",
    "setting_keys",
    "setting_tables",
    "settled",
    "toml_value",
]
