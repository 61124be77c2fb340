"""The process group that torch.distributed calls: it checks what it is given, and queues operations of its exchange.

Names and arguments of methods are PyTorch's, of which some have several names for one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from taihu.core.system.threads import Lock
from taihu.torch.group.meeting.place import GroupPlace
from taihu.torch.group.members import Members
from taihu.torch.group.operations import moves, sparse, sums
from taihu.torch.group.operations.calls import MOST_TAG, Words, call_of
from taihu.torch.group.operations.checks import (
    check_cpu,
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
from taihu.torch.group.operations.devices import Devices, Stage
from taihu.torch.group.operations.exchange import Turn
from taihu.torch.group.operations.work import GroupWork

Tensor = Any
Tensors = list[Any]
At = Callable[[Tensor], Tensor]
Run = Callable[[Turn, At], None]
"""An operation on the host; the function says where there a tensor lies."""


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
        devices: whose tensors the group takes.

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
        devices: Devices | None = None,
    ) -> None:
        super().__init__(place.rank, place.size)
        self._devices = devices or Devices()
        self._members = Members(store, place, global_ranks, is_reconfigurable=is_reconfigurable)
        self._store = store
        self._description = ""
        self._timeout_s = place.timeout_s
        self._on_end = on_end
        self._leaving = Lock()
        self._closed = False

    @property
    def _place(self) -> GroupPlace:
        return self._members.place

    @property
    def supports_reconfigure(self) -> bool:
        """Whether `reconfigure` may be called: the group was made with `enable_reconfigure`."""
        return self._members.are_reconfigurable

    def get_reconfigure_handle(self) -> str:
        """The text by which others find this process in the next `reconfigure`; the same until then."""
        return self._members.handle()

    def reconfigure(self, opts: Any) -> GroupWork:
        """Leave the present members, and connect with those of other handles, one of which is this process's.

        What is under way ends with an error. `opts` are c10d's ReconfigureOptions; returns at once, and the work ends
        when all are connected, with a DistBackendError that names who is lost.

        Raises:
            DistBackendError, ValueError: as `Handles.use`.
        """
        return self._members.change(opts.uuid, opts.handles, seconds_of(opts.timeout, self._timeout_s))

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

        def run(turn: Turn, at: At) -> None:
            for tensor, reduction in zip(tensors, reductions, strict=True):
                with moves.in_place(at(tensor)) as contiguous:
                    sums.all_reduce(turn, contiguous, reduction)

        call = call_of(what, tensors, reduction=reductions[0].name, has_same_sizes=True)
        return self._issue(call, tensors, tensors, run, opts)

    def _sum_sparse(self, what: str, tensors: Tensors, opts: Any) -> GroupWork:
        tensor = check_one(what, tensors)
        check_sparse(what, tensor)
        sums.check_sum(what, opts.reduceOp)
        call = call_of(what, tensors)
        return self._queue(call, tensors, tensors, lambda turn, at: sparse.all_reduce(turn, at(tensor)), opts)

    def reduce(self, tensors: Tensors, opts: Any) -> GroupWork:
        """Reduce a tensor over all ranks into that of the root; others keep theirs."""
        what, tensor, root = "reduce", check_one("reduce", tensors), opts.rootRank
        check_dense(what, tensors)
        reduction = sums.reduction_of(what, opts.reduceOp, tensor.dtype)

        def run(turn: Turn, at: At) -> None:
            with moves.in_place(at(tensor)) as contiguous:
                sums.reduce_to(turn, contiguous, reduction, root)

        call = call_of(what, tensors, reduction=reduction.name, root=root, has_same_sizes=True)
        return self._issue(call, tensors, tensors, run, opts)

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
        all_terms = list(flattened([terms for _, terms in pairs]))
        check_dense(what, all_terms)
        reductions = [sums.reduction_of(what, opts.reduceOp, out.dtype) for out, _ in pairs]

        def run(turn: Turn, at: At) -> None:
            for (out, terms), reduction in zip(pairs, reductions, strict=True):
                sums.reduce_scatter(turn, at(out), [at(term) for term in terms], reduction)

        results = [out for out, _ in pairs]
        return self._issue(call_of(what, results, reduction=reductions[0].name), all_terms, results, run, opts)

    def broadcast(self, tensors: Any, opts: Any) -> GroupWork:
        """Replace each tensor on every rank by the root's."""
        root, tensors = opts.rootRank, list(tensors)

        def run(turn: Turn, at: At) -> None:
            for tensor in tensors:
                moves.broadcast(turn, at(tensor), root)

        call = call_of("broadcast", tensors, root=root, has_same_sizes=True)
        return self._issue(call, tensors, tensors, run, opts)

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
        reads = list(flattened(sends))
        check_dense(call.what, reads)

        def run(turn: Turn, at: At) -> None:
            sent, filled = ([[at(tensor) for tensor in each] for each in lists] for lists in (sends, places))
            moves.swap_tensors(turn, sent, filled)

        return self._issue(call, reads, list(flattened(places)), run, opts)

    def barrier(self, opts: Any = None) -> GroupWork:
        """Wait until all ranks are there."""
        return self._issue(call_of("barrier", []), [], [], lambda turn, _: turn.meet(), opts)

    def send(self, tensors: Tensors, dst: int, tag: int) -> GroupWork:
        """Send a tensor to one rank; the tensor may be changed when the work has ended."""
        tensor = self._one_of("send", tensors, dst, tag)
        return self._members.now("send").messages.send(tensor, dst, tag, self._timeout_s)

    def recv(self, tensors: Tensors, src: int, tag: int) -> GroupWork:
        """Receive a tensor of one rank."""
        tensor = self._one_of("recv", tensors, src, tag)
        return self._members.now("recv").messages.receive(tensor, src, tag, self._timeout_s)

    def recv_anysource(self, tensors: Tensors, tag: int) -> GroupWork:
        """Receive a tensor of whichever rank sends one with this tag; the work's `source_rank` says who."""
        tensor = self._one_of("recv_anysource", tensors, None, tag)
        return self._members.now("recv_anysource").messages.receive(tensor, None, tag, self._timeout_s)

    def _one_of(self, what: str, tensors: Tensors, other: int | None, tag: int) -> Tensor:
        self._members.check_process(what)
        check_dense(what, tensors)
        check_cpu(what, tensors)
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

    def _issue(self, call: Words, reads: Tensors, fills: Tensors, run: Run, opts: Any = None) -> GroupWork:
        """Queue an operation, which reads and fills dense tensors, behind those that were issued before."""
        check_dense(call.what, fills)
        check_own_memory(call.what, fills)
        return self._queue(call, reads, fills, run, opts)

    def _queue(self, call: Words, reads: Tensors, fills: Tensors, run: Run, opts: Any) -> GroupWork:
        timeout_s = seconds_of(getattr(opts, "timeout", None), self._timeout_s)
        connected = self._members.now(call.what)
        turn = Turn(connected.exchange, call.what, timeout_s)
        stage = self._devices.stage(call.what, reads, fills)
        return connected.order.issue(call.what, fills, partial(_carry_out, call, run, turn, stage), stage)

    def shutdown(self) -> None:
        """Leave in good order when what was issued has ended; may be called again, by any thread."""
        if not self._members.are_of_this_process:
            return
        with self._leaving:
            if self._closed:
                return
            self._closed = True
            self._members.leave()
            if self._place.size > 1:
                self._on_end(self._store)

    def abort(self) -> None:
        """End every operation with an error, on all ranks, and leave; may be called again, by any thread.

        Only `reconfigure` connects the group again.
        """
        self.give_up("has aborted the group")
        if self._members.are_reconfigurable:
            self._members.part()
        else:
            self.shutdown()

    def give_up(self, reason: str) -> None:
        """End every operation on all ranks with an error that says that this rank `reason`."""
        self._members.give_up(reason)

    def set_timeout(self, timeout: Any) -> None:
        """Give operations that are issued from now on another timeout."""
        self._timeout_s = timeout.total_seconds()

    def get_group_store(self) -> Any:
        """The group's part of torch's store."""
        return self._store

    @property
    def _device_types(self) -> list[Any]:
        return list(self._devices.kinds)

    @property
    def group_name(self) -> str:
        """The name that torch.distributed has given to the group."""
        return self._members.name

    @property
    def group_desc(self) -> str:
        """The description that torch.distributed has given to the group."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._members.name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """The backend's name."""
        return "taihu"

    name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802 - PyTorch's name
        """As `group_name`, for C++."""
        return self._members.name

    def getGroupDesc(self) -> str:  # noqa: N802 - PyTorch's name
        """As `group_desc`, for C++."""
        return self._description

    def getRank(self) -> int:  # noqa: N802 - PyTorch's name
        """This process's rank in the group."""
        return self._place.rank

    def getSize(self) -> int:  # noqa: N802 - PyTorch's name
        """The number of processes in the group."""
        return self._place.size


def _carry_out(call: Words, run: Run, turn: Turn, stage: Stage) -> None:
    try:
        with stage.present(turn.late_device()):
            turn.exchange.carry_out(call, partial(run, turn, stage.at))
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
