"""An exchange that follows another one in a run: its job, and its plan, which all workers make alike. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from taihu.core.coordination.plans.plan import Plan
from taihu.core.coordination.plans.planning import first_plan, is_computed
from taihu.core.job import Job, revised
from taihu.core.model.layout import Layout

_USUAL_PLAN: Final = "bucket:1MB"


def between_workers_of(job: Job) -> Job:
    """`job` as workers go on among themselves: servers hold what the first exchange was opened for."""
    if not job.servers:
        return job
    return revised(revised(job, "compression", method="none"), "exchange", kind="ring", returns="gradients", zero=0)


def plan_anew(job: Job, layout: Layout, former: Plan) -> Plan:
    """The plan of an exchange of `layout`, which follows one by `former`: buckets, unless the job names a plan."""
    if is_computed(job.exchange.plan):
        # What topk selects it selects from the whole gradient.
        job = revised(job, "exchange", plan="single" if job.compression.method.is_of_whole_model else _USUAL_PLAN)
    plan = first_plan(job, layout, one_host=False)
    carriage = "tcp" if former.carriage == "trial" else former.carriage
    return replace(plan, version=former.version + 1, frame_elements=former.frame_elements, carriage=carriage)
