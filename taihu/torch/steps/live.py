"""Parameters that are on this worker only while somebody uses them (stage 3 of ZeRO)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from taihu.core.base.errors import RunError
from taihu.core.model.layout import Layout
from taihu.torch.steps.away import AwayParameter
from taihu.torch.steps.layer_steps import LayerSteps
from taihu.torch.steps.saved_parameters import SavedParameters


class _Use(NamedTuple):
    """`user` uses the parameters of `layers` until it says that it does not."""

    user: object
    layers: Sequence[int]


class _Node(NamedTuple):
    """A node of a graph reads parameters of `layers` in a backward, which is `task`."""

    task: int
    node: object
    layers: set[int]


class LiveParameters:
    """The users of parameters: the groups of these stay on this worker, all others give their memory back.

    A parameter is used while one of its modules is being called, in a block in which all are gathered, and by the
    node of a graph that has asked for what was saved of it. Elsewhere it tells whoever reads it that it is away. One
    thread calls all of these.

    Args:
        layout: of the exchange.
        parameters: in its order; they lie in one arena.
        steps: fetches them.
    """

    def __init__(
        self,
        layout: Layout,
        parameters: Sequence[torch.nn.Parameter],
        steps: LayerSteps,
    ) -> None:
        self._names = [layer.name for layer in layout.layers]
        self._parameters = parameters
        self._kinds = [type(parameter) for parameter in parameters]
        self._steps = steps
        self._uses: list[_Use] = []
        self._nodes: list[_Node] = []
        self._users_of_layer = [0] * len(parameters)
        self._users_of_group = [0] * len(steps.exchange.plan.groups)
        self._saved = SavedParameters(
            parameters[0].untyped_storage().data_ptr(),
            layout.offsets,
            self._names,
            may_save=lambda layer: bool(self._users_of_layer[layer]),
            recall=self._recall,
        )
        for parameter, name in zip(parameters, self._names, strict=True):
            parameter.taihu_name = name
            parameter.__class__ = AwayParameter

    @property
    def in_use(self) -> bool:
        """Whether somebody uses parameters, or may do so, beside nodes of graphs."""
        return bool(self._uses)

    def regroup(self) -> None:
        """Groups are those of another plan, and nothing is here: what is in use comes back."""
        self._users_of_group = [0] * len(self._steps.exchange.plan.groups)
        for use in self._uses:
            self._bring(use.layers)
        for node in self._nodes:
            for layer in node.layers:
                self._fetch(layer, again=True)

    def use(self, user: object, layers: Sequence[int]) -> None:
        """Return when all parameters of `layers` are here, to stay until `leave(user)`; users leave in turn.

        Raises:
            RunError: in a backward that has sent a gradient of one.
        """
        if not _in_backward():
            self._forget(0)
        self._bring(layers)
        self._uses.append(_Use(user, layers))
        self._saved.open()
        for layer in layers:
            self._users_of_layer[layer] += 1
            self._parameters[layer].__class__ = self._kinds[layer]

    def leave(self, user: object) -> None:
        """`user` uses nothing any more, nor do those that began behind it; who uses nothing may say so, too."""
        if not any(use.user is user for use in self._uses):
            return
        while self._leave_last() is not user:
            pass

    def _leave_last(self) -> object:
        use = self._uses.pop()
        self._saved.close()
        for layer in use.layers:
            self._users_of_layer[layer] -= 1
            if not self._users_of_layer[layer]:
                self._parameters[layer].__class__ = AwayParameter
            group = self._steps.group_of(layer)
            self._users_of_group[group] -= 1
            self._free(group)
        return use.user

    def _bring(self, layers: Sequence[int]) -> None:
        for layer in layers:
            group = self._steps.group_of(layer)
            if not self._users_of_group[group]:
                self._fetch(layer, again=_in_backward())
            self._users_of_group[group] += 1

    def _recall(self, layers: range) -> None:
        """A node of a graph reads parameters now, and is done with them before another one of its backward reads."""
        task, node = torch._C._current_graph_task_id(), torch._C._current_autograd_node()
        # What a backward within a node's own began has a higher number, and has ended when a lower one comes.
        self._forget(task if self._nodes and self._nodes[-1].node is not node else task + 1)
        if not self._nodes or self._nodes[-1].task != task:
            self._nodes.append(_Node(task, node, set()))
        known = self._nodes[-1].layers
        for layer in layers:
            if layer not in known:
                self._fetch(layer, again=True)
                known.add(layer)

    def _forget(self, task: int) -> None:
        """Nodes of backwards from number `task` on have read what they asked for."""
        while self._nodes and self._nodes[-1].task >= task:
            for layer in self._nodes.pop().layers:
                self._free(self._steps.group_of(layer))

    def _fetch(self, layer: int, *, again: bool) -> None:
        if again and self._steps.is_sent(layer):
            raise RunError(
                f"backward needs parameter {self._names[layer]} behind its gradient, which has been sent: set "
                "exchange.zero = 2"
            )
        self._steps.fetch(layer, again=again)

    def _free(self, group: int) -> None:
        in_use = self._users_of_group[group] or any(
            self._steps.group_of(layer) == group for node in self._nodes for layer in node.layers
        )
        if not in_use:
            self._steps.free(group)


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
