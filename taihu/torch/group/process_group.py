"""The process group that torch.distributed calls: it checks what it is given, and queues operations of its exchange.

Names and arguments of methods are PyTorch's, of which some have several names for one operation.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from taihu.core.base.errors import ConfigError, TaihuError
from taihu.torch.group import moves, sparse, sums
from taihu.torch.group.calls import MOST_TAG, Words, call_of
from taihu.torch.group.checks import (
    check_dense,
    check_one,
    check_own_memory,
    check_sizes,
    check_sparse,
    flattened,
    options_of,
    seconds_of,
    split_rows,
)
from taihu.torch.group.connected import Connected
from taihu.torch.group.exchange import GroupExchange, Turn
from taihu.torch.group.handles import Handles, Invitation
from taihu.torch.group.meeting import Meeting, meet
from taihu.torch.group.place import GroupPlace
from taihu.torch.group.work import GroupWork

__all__ = ["TaihuGroup"]

_REVOKED_AFTER_S: Final = 0.5
"""The time that operations have to end when a group is reconfigured."""

Tensor = Any
Tensors = list[Any]
Run = Callable[[Turn], None]


class TaihuGroup(dist.ProcessGroup):
    """A group of processes, of which this is one; torch.distributed makes and calls it.

    Operations that all ranks take part in run in the order in which they were issued, by a thread of the group's;
    messages of two ranks go beside them. An operation that fails ends all others, on every rank.

    Args:
        store: the group's part of torch's store.
        place: of this process in the group.
        global_ranks: the group's ranks in the whole run, in order.
        on_end: is called with `store` when this process has left a group of several.
        is_reconfigurable: the processes do not find each other before `reconfigure`.

    Raises:
        DistBackendError: the group's processes do not find each other, or one of them is lost; it is named.
        ConfigError: this machine has no address at which others reach it.
    """

    def __init__(
        self,
        store: Any,
        place: GroupPlace,
        global_ranks: Sequence[int],
        on_end: Callable[[Any], None] = lambda _: None,
        *,
        is_reconfigurable: bool = False,
    ) -> None:
        super().__init__(place.rank, place.size)
        self._store = store
        self._place = place
        self._global_ranks = tuple(global_ranks) or tuple(range(place.size))
        self._names = {"name": place.name, "description": ""}
        self._timeout_s = place.timeout_s
        self._on_end = on_end
        self._process = os.getpid()
        self._leaving = threading.Lock()
        self._closed = False
        self._handles = Handles(store) if is_reconfigurable else None
        self._connected: Connected | None = None
        if not is_reconfigurable:
            try:
                self._connected = self._among(meet(store, place), place)
            except ConfigError:
                raise
            except TaihuError as error:
                raise self._explain("init", error) from None

    def _among(self, meeting: Meeting, place: GroupPlace) -> Connected:
        return Connected(GroupExchange(meeting, self._store, place), place, self._explain)

    def _now(self, what: str) -> Connected:
        """The group as it is now; raises DistBackendError where it is none, or in a fork of its process."""
        self._check_process(what)
        if self._connected is None:
            raise self._explain(what, RuntimeError("the group is not connected; call reconfigure, and wait for it"))
        return self._connected

    @property
    def supports_reconfigure(self) -> bool:
        """Whether `reconfigure` may be called: the group was made with `enable_reconfigure`."""
        return self._handles is not None

    def get_reconfigure_handle(self) -> str:
        """The text by which others find this process in the next `reconfigure`; the same until then."""
        return self._own_handles().own(self._place)

    def reconfigure(self, opts: Any) -> GroupWork:
        """Leave the present members, and connect with those of other handles, one of which is this process's.

        What is under way ends with an error. `opts` are c10d's ReconfigureOptions; returns at once, and the work ends
        when all are connected, with a DistBackendError that names who is lost.

        Raises:
            DistBackendError, ValueError: as `Handles.use`.
        """
        handles = self._own_handles()
        place = replace(self._place, timeout_s=seconds_of(opts.timeout, self._timeout_s))
        invitation = handles.use(opts.uuid, opts.handles, place)
        work = GroupWork("reconfigure", [])
        former, self._connected = self._connected, None
        threading.Thread(
            target=self._reconfigure, args=(former, invitation, work), name="taihu-reconfigure", daemon=True
        ).start()
        return work

    def _reconfigure(self, former: Connected | None, invitation: Invitation, work: GroupWork) -> None:
        error = None
        place = invitation.place
        try:
            if former is not None:
                former.leave(_REVOKED_AFTER_S)
            self._global_ranks = tuple(range(place.size))
            connected = self._among(invitation.meet(), place)
            try:
                # Nobody may leave while others are about to connect to it.
                connected.exchange.meet(work.what, place.timeout_s)
            except BaseException as raised:
                connected.exchange.fail(raised)
                connected.leave()
                raise
            self._place = replace(place, timeout_s=self._timeout_s)
            self._connected = connected
        except BaseException as raised:
            error = self._explain(work.what, raised)
        tell = work.end(error)
        if tell is not None:
            tell()

    def _own_handles(self) -> Handles:
        self._check_process("reconfigure")
        if self._handles is None:
            raise dist.DistBackendError(
                f"taihu group {self._names['name']!r}: cannot be reconfigured; make it by "
                "init_process_group(enable_reconfigure=True)"
            )
        return self._handles

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> GroupWork:
        """Reduce each tensor over all ranks, in place; a sparse COO tensor is summed, and coalesced then."""
        tensors = tensors if isinstance(tensors, list) else [tensors]
        opts = options_of(dist.AllreduceOptions, opts, timeout)
        if any(tensor.layout is torch.sparse_coo for tensor in tensors):
            return self._sum_sparse("allreduce", tensors, opts)
        return self._reduce_all("allreduce", tensors, opts)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> GroupWork:
        """Reduce each tensor over all ranks, in place."""
        return self._reduce_all("allreduce_coalesced", list(tensors), options_of(dist.AllreduceOptions, opts))

    def _reduce_all(self, what: str, tensors: Tensors, opts: Any) -> GroupWork:
        check_dense(what, tensors)
        reductions = [sums.reduction_of(what, opts.reduceOp, tensor.dtype) for tensor in tensors]

        def run(turn: Turn) -> None:
            for tensor, reduction in zip(tensors, reductions, strict=True):
                with moves.in_place(tensor) as contiguous:
                    sums.all_reduce(turn, contiguous, reduction)

        call = call_of(what, tensors, reduction=reductions[0].name, has_same_sizes=True)
        return self._issue(call, tensors, run, opts)

    def _sum_sparse(self, what: str, tensors: Tensors, opts: Any) -> GroupWork:
        tensor = check_one(what, tensors)
        check_sparse(what, tensor)
        sums.check_sum(what, opts.reduceOp)
        return self._queue(call_of(what, tensors), tensors, lambda turn: sparse.all_reduce(turn, tensor), opts)

    def reduce(self, tensors: Tensors, opts: Any) -> GroupWork:
        """Reduce a tensor over all ranks into that of the root; others keep theirs."""
        what, tensor, root = "reduce", check_one("reduce", tensors), opts.rootRank
        check_dense(what, tensors)
        reduction = sums.reduction_of(what, opts.reduceOp, tensor.dtype)

        def run(turn: Turn) -> None:
            with moves.in_place(tensor) as contiguous:
                sums.reduce_to(turn, contiguous, reduction, root)

        call = call_of(what, tensors, reduction=reduction.name, root=root, has_same_sizes=True)
        return self._issue(call, tensors, run, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> GroupWork:
        """Set the output to the reduction of what all ranks have for this one, in lists of a tensor for each rank."""
        out, terms = check_one("reduce_scatter", outputs), check_one("reduce_scatter", inputs)
        check_sizes("reduce_scatter", [terms[self._place.rank]] if terms else [], out, 1)
        return self._scatter_sums("reduce_scatter", [(out, terms)], opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GroupWork:  # noqa: A002
        """As `reduce_scatter`, of what lies in one tensor for all ranks in turn."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        """As `reduce_scatter_single`, for each pair of tensors."""
        what, pairs = "reduce_scatter_single", []
        for out, tensor in zip(outputs, inputs, strict=True):
            terms = _parts(what, tensor, self._place.size)
            check_sizes(what, terms, out, self._place.size)
            pairs.append((out, terms))
        return self._scatter_sums(what, pairs, opts)

    def _scatter_sums(self, what: str, pairs: list[tuple[Tensor, Tensors]], opts: Any) -> GroupWork:
        opts = options_of(dist.ReduceScatterOptions, opts)
        check_dense(what, list(flattened([terms for _, terms in pairs])))
        reductions = [sums.reduction_of(what, opts.reduceOp, out.dtype) for out, _ in pairs]

        def run(turn: Turn) -> None:
            for (out, terms), reduction in zip(pairs, reductions, strict=True):
                sums.reduce_scatter(turn, out, terms, reduction)

        results = [out for out, _ in pairs]
        return self._issue(call_of(what, results, reduction=reductions[0].name), results, run, opts)

    def broadcast(self, tensors: Any, opts: Any) -> GroupWork:
        """Replace each tensor on every rank by the root's."""
        root, tensors = opts.rootRank, list(tensors)

        def run(turn: Turn) -> None:
            for tensor in tensors:
                moves.broadcast(turn, tensor, root)

        return self._issue(call_of("broadcast", tensors, root=root, has_same_sizes=True), tensors, run, opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> GroupWork:
        """Fill a list of a tensor for each rank with what the ranks have."""
        own, places = check_one("allgather", inputs), check_one("allgather", outputs)
        check_sizes("allgather", places[self._place.rank : self._place.rank + 1], own, 1)
        return self._gather_all("allgather", [[place] for place in places], [own], opts)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> GroupWork:
        """Fill a list for each rank with the tensors that it has."""
        return self._gather_all("allgather_coalesced", outputs, list(inputs), opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> GroupWork:  # noqa: A002
        """Fill one tensor with those of all ranks in turn."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        """As `all_gather_single`, for each pair of tensors."""
        what, size = "all_gather_single", self._place.size
        parts = [_parts(what, output, size) for output in outputs]
        for each, own in zip(parts, inputs, strict=True):
            check_sizes(what, each, own, size)
        return self._gather_all(what, [[each[rank] for each in parts] for rank in range(size)], list(inputs), opts)

    def _gather_all(self, what: str, places: Sequence[Tensors], own: Tensors, opts: Any) -> GroupWork:
        if len(places) != self._place.size:
            raise ValueError(f"taihu {what}: expected places for {self._place.size} ranks, got {len(places)}")
        return self._swap(call_of(what, own), [own] * self._place.size, places, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> GroupWork:
        """Fill the root's list with the tensors of all ranks."""
        own, size = check_one("gather", inputs), self._place.size
        places: Sequence[Tensors] = [[] for _ in range(size)]
        if opts.rootRank == self._place.rank:
            given = check_one("gather", outputs)
            check_sizes("gather", given, own, size)
            places = [[place] for place in given]
        sends = [[own] if rank == opts.rootRank else [] for rank in range(size)]
        return self._swap(call_of("gather", [own], root=opts.rootRank), sends, places, opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> GroupWork:
        """Fill each rank's tensor with its one of the root's list."""
        out, size = check_one("scatter", outputs), self._place.size
        sends: Sequence[Tensors] = [[] for _ in range(size)]
        if opts.rootRank == self._place.rank:
            given = check_one("scatter", inputs)
            check_sizes("scatter", given, out, size)
            sends = [[tensor] for tensor in given]
        places = [[out] if rank == opts.rootRank else [] for rank in range(size)]
        return self._swap(call_of("scatter", [out], root=opts.rootRank), sends, places, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> GroupWork:
        """Send each rank its tensor of a list, and receive one of each."""
        size, rank = self._place.size, self._place.rank
        if len(outputs) != size or len(inputs) != size:
            raise ValueError(f"taihu alltoall: expected {size} tensors, got {len(inputs)} and {len(outputs)}")
        check_sizes("alltoall", [outputs[rank]], inputs[rank], 1)
        call = call_of("alltoall", list(inputs))
        return self._swap(call, [[each] for each in inputs], [[each] for each in outputs], opts)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> GroupWork:
        """As `alltoall`, of rows of one tensor: so many for each rank, by default as many for all."""
        what, size = "all_to_all_single", self._place.size
        outputs = split_rows(what, output, output_split_sizes or (), size)
        inputs = split_rows(what, input, input_split_sizes or (), size)
        return self.alltoall(outputs, inputs, opts)

    def _swap(self, call: Words, sends: Sequence[Tensors], places: Sequence[Tensors], opts: Any) -> GroupWork:
        check_dense(call.what, list(flattened(sends)))

        def run(turn: Turn) -> None:
            moves.swap_tensors(turn, sends, places)

        return self._issue(call, list(flattened(places)), run, opts)

    def barrier(self, opts: Any = None) -> GroupWork:
        """Wait until all ranks are there."""
        return self._issue(call_of("barrier", []), [], Turn.meet, opts)

    def send(self, tensors: Tensors, dst: int, tag: int) -> GroupWork:
        """Send a tensor to one rank; the tensor may be changed when the work has ended."""
        tensor = self._one_of("send", tensors, dst, tag)
        return self._now("send").messages.send(tensor, dst, tag, self._timeout_s)

    def recv(self, tensors: Tensors, src: int, tag: int) -> GroupWork:
        """Receive a tensor of one rank."""
        tensor = self._one_of("recv", tensors, src, tag)
        return self._now("recv").messages.receive(tensor, src, tag, self._timeout_s)

    def recv_anysource(self, tensors: Tensors, tag: int) -> GroupWork:
        """Receive a tensor of whichever rank sends one with this tag; the work's `source_rank` says who."""
        tensor = self._one_of("recv_anysource", tensors, None, tag)
        return self._now("recv_anysource").messages.receive(tensor, None, tag, self._timeout_s)

    def _one_of(self, what: str, tensors: Tensors, other: int | None, tag: int) -> Tensor:
        self._check_process(what)
        check_dense(what, tensors)
        if what != "send":
            check_own_memory(what, tensors)
        if not 0 <= tag <= MOST_TAG:
            raise ValueError(f"taihu {what}: tag {tag}; expected 0 to {MOST_TAG}")
        if other == self._place.rank or (other is not None and not 0 <= other < self._place.size):
            raise ValueError(f"taihu {what}: rank {other} of the group; expected another one of {self._place.size}")
        return check_one(what, tensors)

    # The names that C++ and older versions of PyTorch call.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _issue(self, call: Words, result: Tensors, run: Run, opts: Any = None) -> GroupWork:
        """Queue an operation on dense tensors behind those that were issued before."""
        check_dense(call.what, result)
        check_own_memory(call.what, result)
        return self._queue(call, result, run, opts)

    def _queue(self, call: Words, result: Tensors, run: Run, opts: Any) -> GroupWork:
        timeout_s = seconds_of(getattr(opts, "timeout", None), self._timeout_s)
        connected = self._now(call.what)
        turn = Turn(connected.exchange, call.what, timeout_s)
        return connected.order.issue(call.what, result, partial(_carry_out, call, run, turn))

    def _check_process(self, what: str) -> None:
        """Raise unless this process made the group: a fork has neither its threads nor its place."""
        if os.getpid() != self._process:
            rank = self._global_rank(self._place.rank)
            raise dist.DistBackendError(
                f"taihu group {self._names['name']!r}, {what}: this process is a fork of rank {rank}, and has no "
                f"connection to the others; let rank {rank} call it"
            )

    def _explain(self, what: str, error: BaseException) -> BaseException:
        """The error as PyTorch's scripts expect it; the group's numbers of ranks become those of the whole run."""
        said = f"taihu group {self._names['name']!r}, {what}: {str(error) or repr(error)}"
        named = re.sub(r"\bworker ([0-9]+)\b", lambda match: f"rank {self._global_rank(int(match[1]))}", said)
        failed: BaseException = dist.DistBackendError(named)
        return failed

    def _global_rank(self, rank: int) -> int:
        return self._global_ranks[rank] if rank < len(self._global_ranks) else rank

    def shutdown(self) -> None:
        """Leave in good order when what was issued has ended; may be called again, by any thread."""
        if os.getpid() != self._process:
            return
        with self._leaving:
            if self._closed:
                return
            self._closed = True
            if self._handles is not None:
                self._handles.close()
            if self._connected is not None:
                self._connected.leave()
            if self._place.size > 1:
                self._on_end(self._store)

    def abort(self) -> None:
        """End every operation with an error, on all ranks, and leave; may be called again, by any thread.

        Only `reconfigure` connects the group again.
        """
        self.give_up("has aborted the group")
        if self._handles is None:
            self.shutdown()
        elif self._connected is not None:
            self._connected.leave()

    def give_up(self, reason: str) -> None:
        """End every operation on all ranks with an error that says that this rank `reason`."""
        if os.getpid() == self._process and self._connected is not None:
            self._connected.give_up(reason)

    def set_timeout(self, timeout: Any) -> None:
        """Give operations that are issued from now on another timeout."""
        self._timeout_s = timeout.total_seconds()

    def get_group_store(self) -> Any:
        """The group's part of torch's store."""
        return self._store

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cpu")]

    @property
    def group_name(self) -> str:
        """The name that torch.distributed has given to the group."""
        return self._names["name"]

    @property
    def group_desc(self) -> str:
        """The description that torch.distributed has given to the group."""
        return self._names["description"]

    def _set_group_name(self, name: str) -> None:
        self._names["name"] = name

    def _set_group_desc(self, description: str) -> None:
        self._names["description"] = description

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """The backend's name."""
        return "taihu"

    name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802 - PyTorch's name
        """As `group_name`, for C++."""
        return self._names["name"]

    def getGroupDesc(self) -> str:  # noqa: N802 - PyTorch's name
        """As `group_desc`, for C++."""
        return self._names["description"]

    def getRank(self) -> int:  # noqa: N802 - PyTorch's name
        """This process's rank in the group."""
        return self._place.rank

    def getSize(self) -> int:  # noqa: N802 - PyTorch's name
        """The number of processes in the group."""
        return self._place.size


def _carry_out(call: Words, run: Run, turn: Turn) -> None:
    try:
        turn.exchange.carry_out(call, partial(run, turn))
    except BaseException as error:
        # The others shall not wait for this rank, which may be in the middle of it.
        turn.exchange.fail(error)
        raise


def _parts(what: str, tensor: Tensor, count: int) -> Tensors:
    """Views of one tensor, contiguous or not, for each of `count` ranks: equal numbers of elements in order."""
    if tensor.numel() % count:
        raise ValueError(f"taihu {what}: {tensor.numel()} elements for {count} ranks; expected a multiple")
    if tensor.dim() and tensor.shape[0] % count == 0:
        return list(tensor.detach().split(tensor.shape[0] // count)) if tensor.shape[0] else [tensor] * count
    return list(tensor.detach().view(-1).view(count, -1))
