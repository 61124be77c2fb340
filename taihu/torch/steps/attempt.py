"""A pass of a script's loop, which is given up where another worker is lost in it, and taken again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from taihu.core.base.errors import RecoveringError, TaihuError
from taihu.core.process.ending import is_due_to_others_than
from taihu.torch.steps.roll_call import DisagreementError


class Attempt:
    """Says whether the pass that a script is in is given up: nothing is exchanged or updated in what is left of it.

    The script goes on to the end of its pass and does not notice. Outside of loops that can go back nothing is given
    up, and errors are raised.

    Args:
        rank: of this worker.

    Attributes:
        can_go_back: whether a loop would take the pass again.
        lost: the error by which the pass is given up; None where it is not.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.can_go_back = False
        self.lost: TaihuError | None = None

    @property
    def is_given_up(self) -> bool:
        """Whether the pass is given up.

        Raises:
            RecoveringError: it is, and the script has left the loop that would take it again.
        """
        if self.lost is None:
            return False
        if not self.can_go_back:
            raise RecoveringError(str(self.lost))
        return True

    def lose(self, error: TaihuError) -> None:
        """Give the pass up because of an error that other workers are to blame for.

        Raises:
            TaihuError: the error, where it is none of these, or no loop can go back.
        """
        if not self.can_go_back or isinstance(error, DisagreementError):
            raise error
        if self.lost is None and not is_due_to_others_than(self._rank, error):
            raise error
        self.lost = self.lost or error

    @contextmanager
    def losing(self) -> Iterator[None]:
        """A block that ends where another worker is lost in it."""
        try:
            yield
        except TaihuError as error:
            self.lose(error)

    def begin_again(self) -> None:
        """The next pass begins."""
        self.lost = None
