"""Made-up names. Train and test draw from disjoint syllables, so no name is ever seen in both.

A word is a first and a last syllable of one split; a hash says which split a syllable is of. First syllables end so
that no word can be cut in two ways, hence disjoint syllables make disjoint words.
"""

import random
import zlib

from longstep.worlds.base import Split

_ONSETS = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "kr",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u")
_FIRST_CODAS = ("", "l", "n", "r")
_LAST_CODAS = ("l", "n", "r", "s", "m", "rn", "lt", "nd", "sk", "th")


def _of_split(codas: tuple[str, ...], split: Split) -> tuple[str, ...]:
    """One syllable in three is kept for tests."""
    every = (onset + vowel + coda for onset in _ONSETS for vowel in _VOWELS for coda in codas)
    return tuple(s for s in every if (zlib.crc32(s.encode()) % 3 == 0) == (split == "test"))


FIRST: dict[Split, tuple[str, ...]] = {
    "train": _of_split(_FIRST_CODAS, "train"),
    "test": _of_split(_FIRST_CODAS, "test"),
}
LAST: dict[Split, tuple[str, ...]] = {"train": _of_split(_LAST_CODAS, "train"), "test": _of_split(_LAST_CODAS, "test")}


class Words:
    """Draws words that are distinct within one collection."""

    def __init__(self, split: Split, rng: random.Random):
        self._split: Split = split
        self._rng = rng
        self._first_of: dict[str, str] = {}

    def new(self, like: str | None = None) -> str:
        """A fresh capitalised word; with `like`, one that differs from it in the last syllable only."""
        while True:
            first = self._rng.choice(FIRST[self._split]) if like is None else self._first_of[like]
            word = (first + self._rng.choice(LAST[self._split])).capitalize()
            if word not in self._first_of:
                self._first_of[word] = first
                return word
