"""A script's optimizer as servers carry it out: its update rule, and the learning rates of each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import torch
from pydantic import ValidationError

from taihu.core.base.errors import ConfigError
from taihu.core.job.update_rules import UpdateRules
from taihu.core.settings import OptimizerSettings
from taihu.core.traits.optimizers import ADAM, ADAMW, SGD, Optimizer
from taihu.torch.gradients.spread import is_spread

_KINDS: Final[Mapping[type[torch.optim.Optimizer], Optimizer]] = {
    torch.optim.SGD: SGD,
    torch.optim.Adam: ADAM,
    torch.optim.AdamW: ADAMW,
}
_REFUSED: Final = ("amsgrad", "maximize", "differentiable")
_REMEDY: Final = 'give update="workers"'


class ScriptOptimizer:
    """The optimizer that servers carry out; a torch.optim.SGD, Adam or AdamW that has not begun.

    Args:
        optimizer: the user's own, which decides; it is read, and never steps.
        parameters: those that are exchanged, in the layout's order.

    Raises:
        ConfigError: servers cannot carry it out.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._check()
        self._constants = [_constants(group) for group in optimizer.param_groups]
        number = {id(p): index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
        self.rules = UpdateRules(
            (self._settings(),),
            tuple(float(group["weight_decay"]) for group in optimizer.param_groups),
            tuple(number[id(parameter)] for parameter in parameters),
            (0,) * len(optimizer.param_groups),
        )

    def rates(self, *, may_rest: bool = False) -> tuple[float, ...]:
        """The present learning rate of each parameter group.

        Args:
            may_rest: whether all parameters may be frozen, as while another optimizer's are trained.

        Raises:
            ConfigError: something else has changed since the beginning.
        """
        groups = self._optimizer.param_groups
        if len(groups) != len(self._constants):
            _refuse(f"the optimizer has {len(groups)} parameter groups, it began with {len(self._constants)}")
        for number, (group, before) in enumerate(zip(groups, self._constants, strict=True)):
            for key, value in _constants(group).items():
                if value != before[key]:
                    _refuse(
                        f"{key} of parameter group {number} is {value}, it began as {before[key]}: servers learn "
                        "nothing new but learning rates (a scheduler that cycles momentum takes cycle_momentum=False)"
                    )
        count = sum(parameter.requires_grad for group in groups for parameter in group["params"])
        if may_rest and not count:
            return tuple(float(group["lr"]) for group in groups)
        if count != len(self._parameters) or not all(parameter.requires_grad for parameter in self._parameters):
            _refuse(
                f"{count} parameters need gradients, of {len(self._parameters)} that did in the beginning: freeze "
                "layers before"
            )
        return tuple(float(group["lr"]) for group in groups)

    def _check(self) -> None:
        optimizer = self._optimizer
        kind = type(optimizer).__name__
        if type(optimizer) not in _KINDS:
            _refuse(f"servers carry out SGD, Adam and AdamW of torch.optim, not {kind}")
        if optimizer.state:
            _refuse(f"{kind} has state of {len(optimizer.state)} parameters already, and servers begin with none")
        if any(getattr(optimizer, f"_optimizer_step_{when}_hooks", ()) for when in ("pre", "post")):
            _refuse(f"{kind} has hooks of its step, which never runs where servers update")
        if any(is_spread(parameter) for group in optimizer.param_groups for parameter in group["params"]):
            _refuse("columns of layers that shard_linear has spread are updated by the worker that has them")
        first = optimizer.param_groups[0]
        for number, group in enumerate(optimizer.param_groups):
            where = f"{kind}, parameter group {number}"
            for key in _REFUSED:
                if group.get(key):
                    _refuse(f"{where}: servers do not know {key}")
            if group.get("momentum") and group["dampening"]:
                _refuse(f"{where}: servers do not know dampening, which is {group['dampening']}")
            for key in _shared_keys(kind):
                if group[key] != first[key]:
                    _refuse(
                        f"{where} has {key} {group[key]}, the first one {first[key]}: on servers parameter groups "
                        "have no more than learning rate and weight decay of their own"
                    )
        for parameter in self._parameters:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                _refuse(f"a parameter is {parameter.dtype} on {parameter.device}: servers update float32 on cpu")

    def _settings(self) -> OptimizerSettings:
        first = self._optimizer.param_groups[0]
        # Adam with decoupled decay is AdamW; SGD has no such group.
        rule = ADAMW if first.get("decoupled_weight_decay") else _KINDS[type(self._optimizer)]
        own: dict[str, Any] = {"name": rule}
        if "momentum" in rule.reads:
            own |= {"momentum": float(first["momentum"]), "nesterov": bool(first["nesterov"])}
        else:
            beta1, beta2 = map(float, first["betas"])
            own |= {"beta1": beta1, "beta2": beta2, "epsilon": float(first["eps"])}
        try:
            for group in self._optimizer.param_groups:
                settings = OptimizerSettings.model_validate({**own, "weight_decay": float(group["weight_decay"])})
        except ValidationError as error:
            first_error = error.errors()[0]
            key = ".".join(map(str, first_error["loc"])) or "nesterov"
            _refuse(f"{type(self._optimizer).__name__} has {key} {first_error['input']}: {first_error['msg']}")
        return settings.model_copy(update={"weight_decay": 0.0})


def _shared_keys(kind: str) -> tuple[str, ...]:
    return ("momentum", "nesterov") if kind == "SGD" else ("betas", "eps", "decoupled_weight_decay")


def _constants(group: Mapping[str, Any]) -> dict[str, Any]:
    """All of a parameter group that must stay as it is, so that servers go on doing what the script says."""
    keys = ("momentum", "dampening", "nesterov", "betas", "eps", "weight_decay", *_REFUSED)
    return {key: group[key] for key in keys if key in group}


def _refuse(what: str) -> NoReturn:
    raise ConfigError(f'update="servers": {what}; {_REMEDY}')
