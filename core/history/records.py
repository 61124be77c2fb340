"""Records of a history: what one process did, in the order in which it did it. Pure.

Places are those of the arena of all that is exchanged. `group` is the number of a group in the plan of the step, or
`ALL` where all groups were updated together. `start` names a range among those of its step: it is the first place of
it, and `elements` its size; frames of a server may cover several ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from taihu.core.history.digest import Digest

ALL: Final = -1
"""The group of an update of all groups at once."""


@dataclass(frozen=True)
class Balance:
    """The balance of a selection, as bits of digests of its range; `rounded` says whether what is sent has 16 bits.

    `owed` is the residual after the gradient was added, in the arithmetic of the kernel and with nothing sent yet;
    `together` is what was sent and the residual behind it, added element by element in fp32.
    """

    before: int
    owed: int
    after: int
    together: int
    rounded: bool = False


@dataclass(frozen=True)
class Begin:
    """A process takes part in a generation, from behind step `after`."""

    member: str
    generation: int
    after: int
    servers: int
    workers: int
    zero: int
    precision: str = "fp32"
    kind: Literal["begin"] = "begin"


@dataclass(frozen=True)
class Push:
    """A worker sends the gradients of a group, or what it selected of them."""

    step: int
    attempt: int
    group: int
    start: int
    elements: int
    values: Digest
    balance: Balance | None = None
    kind: Literal["push"] = "push"


@dataclass(frozen=True)
class Returned:
    """A sparse sum rejected `values`, which this worker adds to its residual, whose bits were `before`."""

    step: int
    group: int
    start: int
    elements: int
    values: Digest
    before: int
    after: int
    kind: Literal["returned"] = "returned"


@dataclass(frozen=True)
class Sum:
    """A server sums a frame: `parts` are what went in, in the order of the sum.

    `total` is what came of it, None where the step is skipped; `squeezed` is what was selected of it, if it was.
    """

    step: int
    attempt: int
    group: int
    start: int
    elements: int
    parts: tuple[Digest, ...]
    total: Digest | None
    balance: Balance | None = None
    squeezed: Digest | None = None
    kind: Literal["sum"] = "sum"


@dataclass(frozen=True)
class Update:
    """Parameters of a range are updated by a sum, or stay because the step is skipped, and `gradient` is None.

    `before` and `after` are bits of the parameters, and so their versions; `seen` of those as workers read them.
    """

    step: int
    group: int
    start: int
    elements: int
    gradient: Digest | None
    before: int
    after: int
    seen: int
    kind: Literal["update"] = "update"


@dataclass(frozen=True)
class Read:
    """A worker has a group's parameters as they are after `step`."""

    step: int
    group: int
    start: int
    elements: int
    seen: int
    kind: Literal["read"] = "read"


@dataclass(frozen=True)
class Skip:
    """The workers of a ring agreed to push nothing in this step."""

    step: int
    kind: Literal["skip"] = "skip"


@dataclass(frozen=True)
class End:
    """The run has ended well in this process, a worker's behind `step`; servers count none."""

    step: int = 0
    kind: Literal["end"] = "end"


Record = Annotated[Begin | Push | Returned | Sum | Update | Read | Skip | End, Field(discriminator="kind")]
