"""All that members of a run must have alike: settings, data and layers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from taihu.core.base.errors import ConfigError, ModelError
from taihu.core.job.update_rules import UpdateRules
from taihu.core.model.layout import Layout
from taihu.core.model.run_length import RunLength

_MOST_SHOWN: Final = 3


class Agreement:
    """The settings of a `host`, behind `digest`, and layers, length and updates, which the first worker brings."""

    def __init__(self, host: str, digest: str, settings: Mapping[str, str]) -> None:
        self.layout: Layout | None = None
        self.length: RunLength | None = None
        self.updates: UpdateRules | None = None
        self._host = host
        self._digest = digest
        self._settings = settings

    def check_settings(self, member: str, digest: str, settings: Mapping[str, str]) -> None:
        """Raise ConfigError where a member's settings differ, with the first of them."""
        if digest != self._digest:
            raise ConfigError(
                f"{member} was started with other settings than {self._host}"
                f"{_differences(self._settings, settings)}; give every process the same job file, --set and flags"
            )

    def check_length(self, member: str, length: RunLength) -> None:
        """Note the length of the first worker's run; raise ConfigError where another's differs."""
        if self.length is None:
            self.length = length
        if length.samples != self.length.samples:
            raise ConfigError(
                f"{member}'s data has {length.samples} training samples, that of the others {self.length.samples}; "
                "give every worker the same data: data.name and data.path"
            )
        if length != self.length:
            raise ConfigError(
                f"{member} takes {length.total_steps} steps, {length.steps_per_epoch} an epoch, the others "
                f"{self.length.total_steps} and {self.length.steps_per_epoch}; give every worker the same job"
            )

    def check_layout(self, member: str, layout: Layout | None) -> None:
        """Note the layers of the first worker; raise ModelError where another's differ, or where there are none."""
        if layout is None or not layout.elements:
            raise ModelError(f"{member} joined without a model that has parameters")
        if self.layout is None:
            self.layout = layout
        difference = layout.difference(self.layout)
        if difference:
            raise ModelError(
                f"{member}'s model differs from the one the servers hold: {difference}; "
                "give every worker the same model and data"
            )

    def check_updates(self, member: str, updates: UpdateRules | None, layout: Layout) -> None:
        """Note the optimizer of the first worker, before its layers; raise ConfigError where another's differs.

        Raise ModelError where it is not one for `layout`, the layers that it comes with.
        """
        seen, expected = 0 if updates is None else len(updates.parameter_groups), len(layout.layers)
        if updates is not None and seen != expected:
            raise ModelError(f"{member} brings an optimizer for {seen} layers, expected one for its {expected}")
        if self.layout is None:
            self.updates = updates
        if (updates is None) != (self.updates is None):
            here, there = ("workers", "servers") if updates is None else ("servers", "workers")
            difference: str | None = f'it says update="{here}", expected "{there}"'
        else:
            difference = None if updates is None or self.updates is None else updates.difference(self.updates)
        if difference:
            raise ConfigError(
                f"{member}'s optimizer differs from that of the others: {difference}; give every worker the same "
                "script"
            )


def _differences(own: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Settings that a member has otherwise than its coordinator, as `: train.batch 8, expected 32`."""
    if not own or not others:
        return ""
    keys = [key for key in sorted({*own, *others}) if own.get(key) != others.get(key)]
    shown = [f"{key} {others.get(key, 'unknown')}, expected {own.get(key, 'none')}" for key in keys[:_MOST_SHOWN]]
    more = f", and {len(keys) - _MOST_SHOWN} more" if len(keys) > _MOST_SHOWN else ""
    return f": {'; '.join(shown)}{more}"
