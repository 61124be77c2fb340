"""A user's optimizer whose gradients are the means of all workers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import partial
from typing import Any, Literal

import torch
from typing_extensions import override

from taihu.core.base.errors import ConfigError
from taihu.torch.advice import advice_on_optimizer
from taihu.torch.gradients.exchanged import Optimized
from taihu.torch.gradients.gradients import check_parameters, trained
from taihu.torch.gradients.rules import ScriptOptimizer
from taihu.torch.joined import bring_all
from taihu.torch.kept.contents import OURS
from taihu.torch.local_steps import PREFIX as LOCAL
from taihu.torch.local_steps import LocalSteps
from taihu.torch.steps.server_updates import ServerUpdates
from taihu.torch.steps.steps import BackwardSteps
from taihu.torch.world import World


class DistributedOptimizer(torch.optim.Optimizer):
    """Exchanges gradients during backward; behind it they are the means of all workers, and `step` is the user's.

    Schedulers, GradScaler and clipping take it as the optimizer that it was made of.

    Args:
        optimizer: the user's own, any of PyTorch's or of theirs.
        model: whose parameters and buffers worker 0 brings to all, and whose forwards are watched; without one the
            parameters of the optimizer.
        world: the workers.
        update: who updates: every worker, by the optimizer inside, or the servers, as it says.
    """

    # Everything but backward is the affair of the optimizer inside: none of the base class's state is made.
    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module | None,
        world: World,
        *,
        update: Literal["workers", "servers"] = "workers",
    ) -> None:
        if update not in ("workers", "servers"):
            raise ConfigError(f'update={update!r}: expected "workers" or "servers"')
        self.optimizer = optimizer
        self._world = world
        self._steps: BackwardSteps | None = None
        self._local: LocalSteps | None = None
        self._updates: ServerUpdates | None = None
        self._serves = update == "servers" and not world.is_alone
        self._optimized = Optimized(optimizer, model, has_others=not self._serves)
        if world.is_alone:
            return
        named = trained(optimizer, model)
        parameters = [parameter for _, parameter in reversed(named)]
        if self._serves and world.job.updates_locally:
            raise ConfigError(
                'update="servers": the optimizer updates here in local steps; give update="workers", or set '
                "exchange.local_steps = 1"
            )
        if self._serves:
            if not named:
                raise ConfigError(
                    'update="servers": no parameter of the optimizer needs a gradient: there is nothing to update'
                )
            if model is None:
                raise ConfigError('update="servers": parameters come while modules run; give the model, too')
            names = [name for name, _ in reversed(named)]
            script = ScriptOptimizer(optimizer, parameters)
            self._updates = ServerUpdates(script, model, names, parameters, first=world.served)
        if world.rank == 0:
            for line in advice_on_optimizer(world.job, optimizer):
                warnings.warn(line, stacklevel=3)
        self._train()
        world.does_again(self._train)

    def _train(self) -> None:
        """Have gradients exchanged among the workers that there are now, whoever was there before."""
        world, model = self._world, self._optimized.model
        if self._steps is not None:
            self._optimized = self._optimized.like_new()
        if model is None:
            brings = [parameter for _, parameter in reversed(trained(self.optimizer, None))]
        else:
            brings = [*model.parameters(), *model.buffers()]
        self._steps = world.train(self._optimized, brings, self._updates)
        if world.job.updates_locally:
            self._local = LocalSteps(world.job, self._optimized, self._steps)
            self._steps.adds_up |= {self._optimized}
            self._steps.apart.append(self._local)

    # A copy is the optimizer inside: nothing of what is exchanged belongs to it.
    @override
    def __reduce_ex__(self, _: Any) -> Any:
        return copy, (self.optimizer,)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.optim.Optimizer:
        return deepcopy(self.optimizer, memo)

    @property
    def updates_by_servers(self) -> bool:
        """Whether servers update, and have the state."""
        return self._serves

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the optimizer inside."""
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)

    @override
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update by the mean gradients, as the optimizer inside does; with local steps by this worker's own.

        Gradients that no backward has exchanged, because they were set by hand, are exchanged first. A closure
        returns the mean of all workers' losses to the optimizer inside. Where servers update they have begun to, and
        this waits for nothing.

        Raises:
            ConfigError: a learning rate is another one than when backward began.
            RunError: within backward, or where gradients are not what all workers would exchange alike.
        """
        if self._steps is None:
            return self._stepped(closure)
        attempt = self._world.attempt
        if attempt.is_given_up:
            return self._leave_out(closure)
        if self._local is not None:
            self._local.follow()
            loss = self._stepped(closure)
            with attempt.losing():
                self._local.updated()
            return loss
        if self._serves:
            value = None
            if closure is not None:
                with torch.enable_grad():
                    value = closure()
            if self._updates is not None and self._steps.returning is not None:
                self._steps.returning.stepped(self._updates)
            # Schedulers that were made of the optimizer inside look whether it steps.
            self.optimizer._opt_called = True
            return value
        if closure is None:
            with attempt.losing():
                self._steps.before_update(self._optimized)
            if attempt.is_given_up:
                return self._leave_out(None)
        loss = self._stepped(None if closure is None else partial(self._evaluated, closure, self._steps))
        self._steps.updated(self._optimized)
        return loss

    def _leave_out(self, closure: Callable[[], float] | None) -> float | None:
        """Update nothing: the pass that the script is in is given up."""
        self.optimizer._opt_called = True  # as schedulers want to see
        return None if closure is None else closure()

    def _stepped(self, closure: Callable[[], float] | None) -> float | None:
        loss: float | None = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        return loss

    def _evaluated(self, closure: Callable[[], Any], steps: BackwardSteps) -> Any:
        """The mean loss of all workers: optimizers that look at it, as LBFGS does, go on everywhere alike."""
        loss = closure()
        if loss is None:
            with self._world.attempt.losing():
                steps.before_update(self._optimized)
            return None
        mean = float(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        with self._world.attempt.losing():
            steps.before_update(self._optimized)
            mean = steps.mean_of(mean)
        return torch.full_like(loss.detach(), mean) if isinstance(loss, torch.Tensor) else mean

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Have the optimizer inside update more parameters, from worker 0's values on; all workers call this.

        Raises:
            RunError: another worker does something else.
            ConfigError: gradients of one cannot be exchanged.
        """
        known = {id(parameter) for parameter in self._optimized.own()}
        self.optimizer.add_param_group(param_group)
        if self._steps is None or self._serves:
            return
        added = [(name, p) for name, p in self._optimized.named() if id(p) not in known]
        check_parameters(added, self._optimized.model)
        self._world.bring([p for _, p in added])
        if self._local is not None:
            self._local.follow()

    @override
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        self.optimizer.zero_grad(set_to_none)
        if self._steps is not None:
            self._steps.forget(self._optimized)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer inside, which can load it, too; with what compression has held back here.

        That differs from worker to worker: each saves and loads its own. Of several optimizers the first one has it.

        Raises:
            ConfigError: the state is on the servers.
        """
        if self._serves:
            raise ConfigError(
                'update="servers": the state of the optimizer is divided over the servers and is not here to be '
                'saved; save model.state_dict() alone, or give update="workers"'
            )
        return {**self.optimizer.state_dict(), **self.own_state()}

    def own_state(self) -> dict[str, Any]:
        """The part of the state that this worker alone has: what compression holds back, and local steps."""
        own = self._steps.state() if self._steps is not None and self._steps.is_first(self._optimized) else {}
        local = {} if self._local is None else self._local.state()
        held_back = {name: torch.from_numpy(array.copy()) for name, array in own.items()}
        return {OURS + name: each for name, each in {**held_back, **local}.items()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state; what it does not have of compression stays as it is.

        Raises:
            ConfigError: what was held back belongs to other parameters, or the state is on the servers.
        """
        if self._serves:
            raise ConfigError(
                'update="servers": servers begin without state of the optimizer, and take none; give update="workers"'
            )
        ours = {name.removeprefix(OURS): each for name, each in state_dict.items() if name.startswith(OURS)}
        own = {name: each.numpy() for name, each in ours.items() if not name.startswith(LOCAL)}
        if self._steps is not None and own:
            self._steps.resume(own)
        if self._local is not None:
            self._local.resume(ours)
        self.optimizer.load_state_dict({name: each for name, each in state_dict.items() if not name.startswith(OURS)})

    def synchronize(self) -> None:
        """Return when all parameters are those of the last step, where servers update them.

        Where workers update, gradients are means as soon as backward has returned. Those that no backward has
        exchanged, which were set by hand or added up in `no_sync()`, become means here; all workers call this then.
        With local steps all workers call this before they test or save: what they have updated since the last
        exchange is exchanged.
        """
        if self._world.attempt.is_given_up:
            return
        with self._world.attempt.losing():
            if self._local is not None:
                if self._local.is_pending:
                    self._local.exchange()
            elif self._serves and self._steps is not None:
                self._steps.settle()
            elif self._steps is not None:
                self._steps.before_update(self._optimized, is_asked_for=True)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """In the block all parameters are here, those of the last step, as an average or a copy of the model wants.

        In stage 3 of ZeRO they are not, outside of their modules' forwards. A backward comes behind the block.
        """
        if self._steps is None:
            yield
            return
        with self._steps.gathered():
            yield

    @contextmanager
    def join(self) -> Iterator[None]:
        """In the block workers may have different numbers of backwards, as where batches do not come out even.

        Who has done its own takes part in those of the others, with gradients of zeros. At the end of the block all
        have the parameters, buffers and optimizers of the worker that has had most. Means are those of all workers
        all the same. Of several optimizers any one opens the block, for all.

        Raises:
            ConfigError: layers are spread over the workers, or optimizers make local steps.
        """
        if self._steps is None:
            yield
            return
        if self._world.spreads is not None:
            raise ConfigError(
                "join(): a forward of layers that shard_linear has spread needs all workers; give each as many "
                "batches, of any sizes"
            )
        if self._local is not None:
            raise ConfigError(
                "join(): workers exchange after so many local steps, and nobody steps for who has fewer; give each "
                "as many batches, or set exchange.local_steps = 1"
            )
        with self._steps.joined():
            yield
            most = self._steps.follow()
            self._steps.settle()
            if most is not None:
                bring_all(self._world, self._steps.everywhere(), most)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """During the block gradients are added up here; the first backward behind it exchanges the sum.

        Those of other optimizers are exchanged as ever.
        """
        if self._steps is None:
            yield
            return
        former, self._steps.adds_up = self._steps.adds_up, self._steps.adds_up | {self._optimized}
        try:
            yield
        finally:
            self._steps.adds_up = former
