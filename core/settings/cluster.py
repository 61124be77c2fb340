"""`[cluster]`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from taihu.core.settings.base import Form, Seconds, Section

Members = Annotated[int, Field(ge=1, le=10_000)]

_ADDRESS: Final = Form(
    r"(dns:)?(\[[^\[\]\s]+\]|[^:\s\[\]]+):0*"
    r"([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])",
    "host:port or dns:NAME:port with a port from 0 to 65535",
    "10.0.0.1:7070",
)


class ClusterSettings(Section):
    """`[cluster]`: how many processes there are, where server 0 is found, and what workers compute with.

    `coordinator` is `host:port`, or `dns:NAME:port` where the addresses of a name are those of all servers.

    With `compute` sw26010 this machine's processor computes, the same bits as always, but the job is planned by
    modelled times of forward and backward: those of an SW26010, of which `core_groups` core groups share a worker's
    batch. All other times, those of links and compression, are measured as always. With a `pace` steps take so many
    times as long as modelled, as far as this machine keeps up: a run of several hosts shows what exchanges cost then.
    """

    servers: Members = Field(default=2, description="number of servers; none take part in a ring")
    workers: Members = Field(default=3, description="number of workers")
    coordinator: Annotated[str, _ADDRESS] | None = Field(
        default=None, description="where server 0, in a ring worker 0, is found: host:port or dns:NAME:port"
    )
    connect_timeout_s: Seconds = Field(
        default=60.0, description="the longest wait for other processes to start, in seconds"
    )
    heartbeat_s: Annotated[float, Field(ge=0.01, le=3600)] = Field(
        default=0.5,
        description="time between two signs of life of a member, in seconds; longer where all members together would "
        "give more than 50 a second",
    )
    lost_after_s: Seconds = Field(default=15.0, description="silence after which a member is given up, in seconds")
    min_agents: Members = Field(
        default=1, description="with fewer agents (`taihu agent`) a run waits for others, which may come at any time"
    )
    threads: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=0, description="threads that a worker computes with; 0 takes all cores"
    )
    reflection: bool = Field(
        default=False, description="serve gRPC reflection, for looking at a run with other tools"
    )
    compute: Literal["cpu", "sw26010"] = Field(
        default="cpu", description="what workers compute with, or are planned for"
    )
    core_groups: Annotated[int, Field(ge=1, le=4)] = Field(
        default=4, description="sw26010: core groups that share a worker's batch"
    )

    pace: Annotated[float, Field(gt=0, le=1_000_000)] | None = Field(
        default=None,
        description="sw26010: forward and backward take so many times as long as modelled; else they do not wait",
    )

    @field_validator("compute", mode="before")
    @classmethod
    def _the_functional_model_does_not_train(cls, compute: object) -> object:
        if compute == "sw26010-functional":
            raise ValueError(
                "'sw26010-functional' trains no more: use 'sw26010', which plans by the same times, and "
                "`taihu dev bench sw26010` to run the kernels of the functional model"
            )
        return compute

    @model_validator(mode="after")
    def _a_missed_heartbeat_is_no_loss(self) -> ClusterSettings:
        if self.lost_after_s <= self.heartbeat_s:
            raise ValueError(
                f"cluster.lost_after_s {self.lost_after_s:g}: expected more than cluster.heartbeat_s, "
                f"{self.heartbeat_s:g}; every member would be given up between two of its heartbeats"
            )
        return self
