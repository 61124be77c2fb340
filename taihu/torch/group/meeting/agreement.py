"""Agreement of a group's processes on who they are, by keys that earlier groups may have left: pure.

A store outlives groups: keys of a former group of the same name, or of a former attempt of a run, are read as if they
were new. So nothing is believed that has not been said again. Each rank says hello with a number that it has drawn
for this group. Rank 0 writes the numbers that it sees into a roster, with a word of its own. Each rank that finds its
number there repeats the word. When all have repeated one word, all are of the same group. A rank of a former group
never repeats a new word, and the rank that comes in its place replaces its hello.

Who has repeated a word of the roster's, though others were missing in it, is met: it waits for the same group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Life:
    """One life of a rank: the number that it has drawn, and where the others reach it."""

    incarnation: int
    address: str

    def text(self) -> str:
        """The life as a key's value."""
        return f"{self.incarnation} {self.address}"

    @classmethod
    def read(cls, text: str) -> Life:
        """A life from a key's value; raises ValueError when it is none."""
        number, _, address = text.partition(" ")
        return cls(int(number), address)


@dataclass(frozen=True)
class Roster:
    """The ranks that rank 0 has seen, in order, None for one that has not come; `word` is for these lives alone.

    Those of `met` are of this group for certain.
    """

    word: str
    lives: tuple[Life | None, ...]
    met: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether a life of each rank is there."""
        return None not in self.lives

    def has(self, rank: int, life: Life) -> bool:
        """Whether rank 0 has seen this life of `rank`: then the roster is of its group, too."""
        return rank < len(self.lives) and self.lives[rank] == life

    def absent(self) -> list[int]:
        """The ranks of which there is no life."""
        return [rank for rank, life in enumerate(self.lives) if life is None]

    def silent(self, words: Sequence[str]) -> list[int]:
        """The ranks that have not repeated the word, of a list of all ranks' words."""
        return [rank for rank, word in enumerate(words) if word != self.word]

    def text(self) -> str:
        """The roster as a key's value."""
        return json.dumps([self.word, [life and life.text() for life in self.lives], self.met])

    @classmethod
    def read(cls, text: str) -> Roster:
        """A roster from a key's value; raises ValueError when it is none."""
        word, lives, met = json.loads(text)
        return cls(word, tuple(life and Life.read(life) for life in lives), tuple(met))


class Host:
    """Rank 0's side: the roster of the lives that it sees; `new_word` draws a word that nobody had before."""

    def __init__(self, size: int, new_word: Callable[[], str]) -> None:
        self._new_word = new_word
        self.roster = Roster(new_word(), (None,) * size)
        # All of this meeting: who has repeated one is there, though another rank has come since.
        self._words = {self.roster.word}

    def see(self, lives: Sequence[Life | None], words: Sequence[str]) -> bool:
        """Take in the ranks' present lives and words; returns whether the roster is another one now."""
        former = self.roster
        met = tuple(
            rank
            for rank, life in enumerate(lives)
            if life is not None and life == former.lives[rank] and (rank in former.met or words[rank] in self._words)
        )
        word = former.word if tuple(lives) == former.lives else self._new_word()
        self._words.add(word)
        self.roster = Roster(word, tuple(lives), met)
        return self.roster != former

    def is_agreed(self, words: Sequence[str]) -> bool:
        """Whether all ranks are there and have repeated the roster's word."""
        return self.roster.is_whole and not self.roster.silent(words)
