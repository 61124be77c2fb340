"""A communication hook of DistributedDataParallel that compresses gradients, see docs/torch.md.

Annotations are objects here and no text: DistributedDataParallel looks at those of a hook.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from taihu.core.base.errors import ConfigError
from taihu.core.base.words import listed
from taihu.core.compression import Compressor, make_compressor
from taihu.core.compression.bucket import Bucket, HeldBack
from taihu.core.job import load_job
from taihu.core.settings import OptimizerSettings
from taihu.core.traits.methods import METHODS
from taihu.torch.steps.layer_rates import rates_by_id

_SETTINGS_BYTES: Final = 512
# The second is the name in older versions of PyTorch; newer ones warn of it.
_all_gather: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_WITHOUT_MEANING: Final = frozenset(
    {"clip", "downlink", "downlink_value_type", "factor_masking", "momentum_at", "rank"}
)


@dataclass(frozen=True)
class _Known:
    """A bucket, and what it was made of; parameters are kept, so that their ids stay theirs."""

    key: tuple[int, ...]
    parameters: list[Any]
    bucket: Bucket


class ExchangeState:
    """The settings and the memory of `exchange_hook` for one model: what each parameter's gradient holds back.

    Names and meanings are those of `[compression]` (docs/job.md): method, density, threshold, refresh_every,
    value_type, density_warmup_steps, clip_norm. The model of `topk` is a bucket here.

    Args:
        method: topk, lags or dlgs; none for sums of everything.
        density: share of the gradient that is sent.
        group: of processes, None for all of them.
        optimizer: of the model; given, a learning rate that rises does not enlarge what is held back, as
            `held_back_rises` says.
        settings: further ones.

    Raises:
        ConfigError: a setting is unknown, out of range, or means nothing here.
    """

    def __init__(
        self,
        method: str = "dlgs",
        density: float = 0.01,
        group: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
        **settings: object,
    ) -> None:
        if named := sorted(_WITHOUT_MEANING & settings.keys()):
            raise ConfigError(
                f"ExchangeState: {listed(named)}: nothing that DistributedDataParallel's hook does; leave it out"
            )
        tables = {"compression": {"method": method, "density": density, **settings}}
        wanted = METHODS.find(method)
        if wanted is not None and (wanted.is_chosen or wanted.codes or wanted.sends_all):
            raise ConfigError(
                f"ExchangeState: method {method!r}: expected 'none' or one that selects values, as 'dlgs' does"
            )
        job = load_job(None, tables, sources=("ExchangeState",))
        self._settings = job.compression
        self._optimizer = optimizer if job.lowers_held_back else None
        self._group = group
        self._step = 0
        self._buckets: dict[int, _Known] = {}
        self._held: dict[int, tuple[Any, HeldBack]] = {}
        self._compressor: Compressor | None = None

    def exchange(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin to exchange a bucket's gradients; the future has their mean, in the bucket's own memory.

        Raises:
            ConfigError: ranks have other settings, or gradients are not fp32 on the CPU.
        """
        group = dist.group.WORLD if self._group is None else self._group
        if self._compressor is None:
            self._compressor = self._agreed(group)
        step = self._step + 1
        if bucket.is_last():
            self._step = step
        if self._is_dense:
            return _mean(bucket.buffer(), group)
        own = self._own(bucket, self._compressor, group.size(), step)
        own.select(step, self._rates_of(bucket.parameters()))
        received, parcel = torch.from_numpy(own.received).view(-1), torch.from_numpy(own.parcel)
        gathered = _all_gather(received, parcel, group=group, async_op=True).get_future()
        gradients = bucket.buffer()

        def mean(done: torch.futures.Future[Any]) -> torch.Tensor:
            done.value()
            own.mean()
            return gradients

        return gathered.then(mean)

    def state_dict(self, model: torch.nn.Module) -> dict[str, Any]:
        """The state that this rank goes on from, between two steps: each saves and loads its own.

        Args:
            model: the one that the hook is registered with, or that it wraps.

        Returns:
            `step`, and by names of parameters `residuals`, fp32 of shape (n,) in the order of their memory, and
            `thresholds`: threshold, its age and the number of entries that it was made for; and `rates`.
        """
        everything = self._everything()
        held = {name: everything[id(p)][1] for name, p in _named(model).items() if id(p) in everything}
        return {
            "step": self._step,
            "residuals": {name: torch.tensor(each.residual) for name, each in held.items()},
            "thresholds": {name: (each.threshold, each.age, each.made_for) for name, each in held.items()},
            "rates": {name: each.rate for name, each in held.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any], model: torch.nn.Module) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            ConfigError: the model has not such parameters; nothing has changed.
        """
        parameters = _named(model)
        held: dict[int, tuple[Any, HeldBack]] = {}
        for name, residual in saved["residuals"].items():
            parameter = parameters.get(name)
            if parameter is None or parameter.numel() != residual.numel():
                there = "no such parameter" if parameter is None else f"{parameter.numel()} values"
                raise ConfigError(
                    f"ExchangeState: {residual.numel()} values of {name} were saved, and the model has {there}; load "
                    "what was saved of the same model"
                )
            values = residual.detach().to(torch.float32).numpy().copy()
            rate = saved.get("rates", {}).get(name, -1.0)
            threshold, age, made_for = saved["thresholds"][name]
            held[id(parameter)] = parameter, HeldBack(values, threshold, age, made_for, rate)
        self._buckets.clear()
        self._held = held
        self._step = int(saved["step"])

    def _rates_of(self, parameters: Sequence[torch.Tensor]) -> NDArray[np.float64] | None:
        """The learning rates of a bucket's parameters, shape (n,), -1 where they are not known."""
        if self._optimizer is None:
            return None
        known = rates_by_id(self._optimizer.param_groups)
        return np.array([known.get(id(parameter), -1.0) for parameter in parameters])

    @property
    def _is_dense(self) -> bool:
        own = self._settings
        changes = own.value_type != "fp32" or own.density_warmup_steps or own.clip_norm is not None
        return not own.method.selects or (own.share == 1.0 and not changes)

    def _agreed(self, group: Any) -> Compressor:
        """The compressor, once all ranks are known to have the same."""
        own = json.dumps(self._settings.model_dump(mode="json", exclude=set(_WITHOUT_MEANING)))
        text = torch.frombuffer(bytearray(own.encode().ljust(_SETTINGS_BYTES)), dtype=torch.uint8)
        everybody = torch.empty(group.size() * _SETTINGS_BYTES, dtype=torch.uint8)
        _all_gather(everybody, text, group=group)
        for rank, other in enumerate(everybody.view(group.size(), -1)):
            if not torch.equal(other, text):
                theirs = bytes(other.tolist()).decode(errors="replace").strip()
                raise ConfigError(f"ExchangeState: {own} here, {theirs} on rank {rank}; give all ranks the same")
        return make_compressor(self._settings, OptimizerSettings(), workers=group.size(), momentum_here=False)

    def _own(self, bucket: dist.GradBucket, compressor: Compressor, ranks: int, step: int) -> Bucket:
        """The bucket's compression; DistributedDataParallel makes other buckets of the parameters when it likes."""
        parameters, gradients = bucket.parameters(), bucket.buffer()
        key = (gradients.data_ptr(), *map(id, parameters))
        known = self._buckets.get(bucket.index())
        if known is not None and known.key == key:
            return known.bucket
        if gradients.dtype != torch.float32 or gradients.device.type != "cpu":
            raise ConfigError(
                f"exchange_hook: gradients are {gradients.dtype} on {gradients.device}; expected torch.float32 "
                "on the CPU, of which compression selects"
            )
        if known is not None:
            self._held = self._everything()
            self._buckets.clear()
        held = []
        for parameter in parameters:
            none = parameter, HeldBack(np.zeros(parameter.numel(), dtype=np.float32))
            held.append(self._held.pop(id(parameter), none)[1])
        made = Bucket(compressor, gradients.numpy(), held, ranks, step)
        self._buckets[bucket.index()] = _Known(key, parameters, made)
        return made

    def _everything(self) -> dict[int, tuple[Any, HeldBack]]:
        """Parameters and what is held back of them, in buckets or not, by their ids."""
        found = dict(self._held)
        for known in self._buckets.values():
            for parameter, held in zip(known.parameters, known.bucket.held_back(), strict=True):
                found[id(parameter)] = parameter, held
        return found


def exchange_hook(state: ExchangeState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook: `model.register_comm_hook(state, exchange_hook)`; see `ExchangeState.exchange`."""
    return state.exchange(bucket)


def _mean(gradients: torch.Tensor, group: Any) -> torch.futures.Future[torch.Tensor]:
    summed = dist.all_reduce(gradients, group=group, async_op=True).get_future()

    def mean(done: torch.futures.Future[Any]) -> torch.Tensor:
        done.value()
        return gradients.div_(group.size())

    return summed.then(mean)


def _named(model: torch.nn.Module) -> dict[str, Any]:
    """Parameters by their names in the model that DistributedDataParallel wraps."""
    inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    return dict(inner.named_parameters())
