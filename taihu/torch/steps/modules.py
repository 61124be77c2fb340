"""Parameters that the modules of a model are about to read, and state that is taken of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, SupportsIndex

import torch

from taihu.core.base.errors import ConfigError

# Of what `__reduce_ex__` returns.
_STATE: Final = 2


class Uses(Protocol):
    """Uses of parameters that do not stay: they are here meanwhile."""

    def use(self, user: object, numbers: Sequence[int]) -> None:
        """Return when these parameters are here, to stay until `leave(user)`."""

    def leave(self, user: object) -> None:
        """`user`, who may have used nothing, uses nothing any more."""


class ModuleReads:
    """Tells before each call of a module which parameters it reads, by their numbers: those that it owns.

    Parameters that are read without a call of their module, as some modules read those of their children, belong to
    the module around that is called: `learn` takes what was seen of the first pass.

    Args:
        model: whose modules are watched.
        numbers: of parameters, by their identity; the last one of the model has 0.
        read: called with numbers, before the module reads these parameters.
        settle: called before a state is taken of a module: all parameters are to be complete.
        uses: told, in the place of `read`, who reads parameters, and when it has; states are copies then.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        numbers: Mapping[int, int],
        read: Callable[[Sequence[int]], None],
        settle: Callable[[], None],
        uses: Uses | None = None,
    ) -> None:
        self._model = model
        self._numbers = numbers
        self._read = read
        self._uses = uses
        self._settle = settle
        self.is_compiled = False
        """Whether compiled code, in which nobody waits for a module's own, reads some: all are to be here before."""
        self._called: set[torch.nn.Module] = set()
        # Of a state are a module's own parameters; what it reads may be those of others, too.
        self._own: dict[torch.nn.Module, list[int]] = {}
        self._of: dict[torch.nn.Module, list[int]] = {}
        for module in model.modules():
            own = {numbers[id(p)] for p in module.parameters(recurse=False) if id(p) in numbers}
            if own:
                # In the order of a forward, which is not that of the numbers.
                self._of[module] = self._own[module] = sorted(own, reverse=True)
                module.register_load_state_dict_pre_hook(_Hook(_refuse_state))
            module.register_state_dict_pre_hook(_Hook(lambda *_: settle()))
            if own and uses is not None:
                module.register_state_dict_pre_hook(_Hook(lambda module, *_: uses.use(module, self._own[module])))
                module.register_state_dict_post_hook(_Hook(self._copy))
            module.__dict__["__reduce_ex__"] = partial(_reduced, module, settle)
        # What a script's hooks of a module read is in between.

        @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
        def compiles() -> None:  # PyTorch marks it, and a method bears no mark
            self._compiles()

        before = _Hook(self._before, compiles)
        self._hooks = {module: [module.register_forward_pre_hook(before, prepend=True)] for module in model.modules()}
        if uses is not None:
            # A view of a parameter that leaves its module is noticed in all of the model's forward.
            self._of.setdefault(model, [])
            for module, hooks in self._hooks.items():
                leave = _Hook(lambda user, *_: uses.leave(user))
                hooks.append(module.register_forward_hook(leave, always_call=True))

    def learn(self, unread: Iterable[int]) -> list[int]:
        """Parameters `unread` have brought gradients although no module that owns them was called until now.

        They belong to the innermost module around that was. Returns those that no module is around.
        """
        missing = set(unread)
        modules = dict(self._model.named_modules(remove_duplicate=False))
        found = set()
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            number = self._numbers.get(id(parameter), -1)
            if number not in missing:
                continue
            path = name
            while path:
                path = path.rpartition(".")[0]
                if modules[path] in self._called:
                    known = self._of.setdefault(modules[path], [])
                    self._of[modules[path]] = sorted({*known, number}, reverse=True)
                    found.add(number)
                    break
        for module, hooks in self._hooks.items():
            if module not in self._of:
                for hook in hooks:
                    hook.remove()
        self._called.clear()
        return sorted(missing - found)

    def _before(self, module: torch.nn.Module, _: Any) -> None:
        self._called.add(module)
        own = self._of.get(module)
        if own is None:
            return
        if self._uses is None:
            self._read(own)
        else:
            self._uses.use(module, own)

    def _compiles(self) -> None:
        """A module is being compiled, and is called then."""
        if self._uses is not None:
            raise ConfigError(
                "exchange.zero = 3: torch.compile cannot have parameters that are here for a module's call alone: "
                "set exchange.zero = 2"
            )
        self._settle()
        self.is_compiled = True

    def _copy(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        """The state has values of its own, since the parameters' memory is given back."""
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            value = state.get(prefix + name)
            if value is not None and value is not parameter and id(parameter) in self._numbers:
                state[prefix + name] = value.clone()
        if self._uses is not None:
            self._uses.leave(module)


class _Hook:
    """A hook of a module; PyTorch marks some, and copies of the module do without it: see `_reduced`.

    Args:
        act: called with what the hook is.
        traced: called in its place by `torch.compile`, once for all calls of what it makes.
    """

    def __init__(self, act: Callable[..., None], traced: Callable[[], None] = lambda: None) -> None:
        self._act = act
        self._traced = traced

    def __call__(self, *arguments: Any) -> None:
        """Act."""
        if torch.compiler.is_dynamo_compiling():
            self._traced()
        else:
            self._act(*arguments)


def _reduced(module: torch.nn.Module, settle: Callable[[], None], protocol: SupportsIndex) -> Any:
    """The state of a module for `pickle`, `deepcopy` and `torch.save`: the user's, complete, without hooks of ours.

    All of them ask the object for its `__reduce_ex__`, and would otherwise come to its parameters first.
    """
    settle()
    kind: Any = type(module)  # its own way, if it has one
    reduced = kind.__reduce_ex__(module, protocol)
    if isinstance(reduced, tuple) and len(reduced) > _STATE and isinstance(state := reduced[_STATE], dict):
        own = {key: _without_ours(value) for key, value in state.items() if key != "__reduce_ex__"}
        return (*reduced[:_STATE], own, *reduced[_STATE + 1 :])
    return reduced


def _without_ours(value: Any) -> Any:
    if not isinstance(value, OrderedDict) or not any(map(_is_ours, value.values())):
        return value
    return OrderedDict((key, hook) for key, hook in value.items() if not _is_ours(hook))


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "hook", hook), _Hook)  # PyTorch wraps some together with their module


def _refuse_state(module: torch.nn.Module, *_: Any) -> None:
    raise ConfigError(
        f'update="servers": {type(module).__name__}.load_state_dict would write parameters that the servers hold; '
        "load the state before DistributedOptimizer is made"
    )
