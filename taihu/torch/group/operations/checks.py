"""Checks of the tensors and options that a process group is given, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch


def check_dense(what: str, tensors: Sequence[Any]) -> None:
    """Raise ValueError unless all are dense tensors of the CPU or of CUDA devices."""
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "cuda") or tensor.layout is not torch.strided or tensor.is_quantized:
            kind = f"{tensor.layout} tensor on {tensor.device}"
            raise ValueError(f"taihu {what}: expected dense tensors on cpu or cuda, got a {kind}; use gloo for it")


def check_cpu(what: str, tensors: Sequence[Any]) -> None:
    """Raise ValueError unless all are tensors of the CPU."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise ValueError(f"taihu {what}: expected a tensor on cpu, got one on {tensor.device}; give it a cpu()")


def check_own_memory(what: str, results: Sequence[Any]) -> None:
    """Raise ValueError where elements of a tensor that is to be filled share memory, as those of `expand` do."""
    for tensor in results:
        if not tensor.is_contiguous() and any(
            size > 1 and not stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ):
            raise ValueError(f"taihu {what}: elements of the tensor lie in the same memory; give it a clone()")


def check_sparse(what: str, tensor: Any) -> None:
    """Raise ValueError unless it is a sparse COO tensor in the memory of the CPU."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.sparse_coo:
        kind = f"{tensor.layout} tensor on {tensor.device}"
        raise ValueError(f"taihu {what}: expected a sparse COO tensor on cpu, got a {kind}; use nccl for it")


def check_one(what: str, tensors: Sequence[Any]) -> Any:
    """The only element of a list; raises ValueError when it has another number."""
    if len(tensors) != 1:
        raise ValueError(f"taihu {what}: expected one tensor of each process, got {len(tensors)}")
    return tensors[0]


def check_sizes(what: str, tensors: Sequence[Any], like: Any, count: int) -> None:
    """Raise ValueError unless there are `count` tensors of the type and the number of elements of `like`."""
    if len(tensors) != count:
        raise ValueError(f"taihu {what}: expected a tensor for each of {count} ranks, got {len(tensors)}")
    for tensor in tensors:
        if tensor.dtype != like.dtype or tensor.numel() != like.numel():
            seen = f"{tensor.numel()} of {tensor.dtype}"
            raise ValueError(f"taihu {what}: expected {like.numel()} elements of {like.dtype}, got {seen}")


def split_rows(what: str, tensor: Any, sizes: Sequence[int], count: int) -> list[Any]:
    """The parts of `tensor` for each of `count` ranks: so many rows each, or equal numbers where `sizes` is empty.

    Raises:
        ValueError: the rows do not add up to the tensor's.
    """
    rows = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if rows % count:
            raise ValueError(f"taihu {what}: {rows} rows for {count} ranks; expected a multiple, or sizes of splits")
        sizes = [rows // count] * count
    if len(sizes) != count or sum(sizes) != rows or min(sizes) < 0:
        raise ValueError(f"taihu {what}: splits {list(sizes)} of {rows} rows for {count} ranks; expected their sum")
    return list(tensor.split(list(sizes)))


def seconds_of(timeout: Any, default_s: float) -> float:
    """The seconds of an operation's own timeout, or the group's where it has none (PyTorch sets -1 ms then)."""
    seconds = timeout.total_seconds() if timeout is not None else -1.0
    return float(seconds) if seconds > 0.0 else default_s


def flattened(lists: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """All elements of all lists."""
    for each in lists:
        yield from each


def options_of(kind: Any, opts: Any, timeout: Any = None) -> Any:
    """Options of a `kind` of PyTorch's, from such, from a ReduceOp, or from none."""
    if opts is not None and hasattr(opts, "reduceOp"):
        return opts
    made = kind()
    if opts is not None:
        made.reduceOp = opts
    if timeout is not None:
        made.timeout = timeout
    return made
