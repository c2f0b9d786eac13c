"""What atoms are made of: a `Draft` to draw parameters and start files from, `Item` for the result, `Hand` to act with.

An atom is a function from a draft to an item. It draws its parameters and adds the start files that it needs; the
item's effect is applied later, in the order of the items, when the whole start state stands. So items may share
folders and files, and one whose effect no longer makes sense raises `Clash`, whereupon the task is drawn anew.
"""

import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any

from longstep.errors import WorldError
from longstep.messages import Effort, ToolResult
from longstep.worlds.base import Move, Split
from longstep.worlds.terminal import names
from longstep.worlds.terminal.tree import Clash, File, Tree, folder_of

Steps = Generator[Move, tuple[ToolResult, ...], None]
Reading = Generator[Move, tuple[ToolResult, ...], str]

MODES = (0o600, 0o640, 0o644, 0o660, 0o664, 0o700, 0o744, 0o750, 0o755)  # the owner can always read and write


@dataclass(frozen=True)
class Item:
    """One instruction. `work` does it by what the instruction and the results say, never by the true state."""

    text: str
    effect: Callable[[Tree], None]
    work: Callable[["Hand"], Steps]


@dataclass
class Rules:
    """What must still hold at the end: a folder and a file that stay as they are, a file that keeps its permissions."""

    keep: str | None = None
    fixed: str | None = None
    mode: str | None = None


@dataclass(frozen=True)
class Pattern:
    """Every file with an extension, directly in a folder or (None) anywhere, without those that a rule protects."""

    folder: str | None
    ext: str
    keep: str | None = None
    spare: str | None = None

    def matches(self, tree: Tree) -> list[str]:
        paths = sorted(tree.files) if self.folder is None else tree.below(self.folder)
        found = [
            p
            for p in paths
            if p.endswith(f".{self.ext}") and p != self.spare and not (self.keep and p.startswith(self.keep + "/"))
        ]
        if len(found) < 2 or (self.folder and any(folder_of(p) != self.folder for p in found)):
            raise Clash(f"*.{self.ext} names fewer than two files, or some that may or may not be meant")
        return found

    @property
    def glob(self) -> str | None:
        """A shell glob, if that is enough to say what is meant."""
        return f"{self.folder}/*.{self.ext}" if self.folder and not self.spare else None

    @property
    def find(self) -> str:
        top = f"find {self.folder} -maxdepth 1" if self.folder else "find ."
        keep = f" ! -path './{self.keep}/*'" if self.keep and not self.folder else ""
        spare = f" ! -path {self.spare if self.folder else './' + self.spare}" if self.spare else ""
        return f"{top} -name '*.{self.ext}'{keep}{spare}"

    @property
    def short(self) -> str:
        """For thinking: which files, which not."""
        spared = [f"./{self.keep}/"] if self.keep and not self.folder else []
        spared += [self.spare] if self.spare else []
        where = f"in {self.folder}" if self.folder else "everywhere"
        return f"*.{self.ext} {where}" + (f", not {' and '.join(spared)}" if spared else "")

    @property
    def said(self) -> str:
        """For instructions."""
        return f"in {self.folder}" if self.folder else "in this folder and all folders below it"


class Draft:
    """A task in the making: names that no other name contains, and the start tree."""

    def __init__(self, rng: random.Random, split: Split):
        self.rng = rng
        self.split: Split = split
        self.tree = Tree()
        self.rules = Rules()
        self.folders: list[str] = []  # those that items may share
        self.logs: list[str] = []
        self.tables: list[tuple[str, list[str], list[str]]] = []  # path, header, values of the second column
        self._edited_under_rule = False
        self._made: list[str] = []  # files that the items so far will make
        self._used: list[str] = ["error", "warn", "info", "debug", "item", "word", "next", "mark", "name"]
        self.filler = [self.word() for _ in range(10)]

    # Names

    def _fresh(self, draw: Callable[[], str]) -> str:
        """Not inside another name and no other name inside it, so that a search for it finds nothing else."""
        for _ in range(200):
            name = draw()
            if not any(name in used or used in name for used in self._used):
                self._used.append(name)
                return name
        raise Clash("no fresh name left")

    def word(self) -> str:
        if self.rng.random() < 0.5:
            return self._fresh(lambda: names.word(self.rng, self.split))
        return self._fresh(lambda: names.coined(self.rng, self.split))

    def name(self) -> str:
        return self._fresh(lambda: names.name(self.rng, self.split))

    def ext(self) -> str:
        return names.extension(self.rng, self.split)

    def other_ext(self, than: str) -> str:
        while (ext := self.ext()) == than:
            pass
        return ext

    def say(self, *forms: str, **values: object) -> str:
        return self.rng.choice(forms).format(**values)

    # Folders and files of the start tree

    def new_folder(self, made: bool = True) -> str:
        """`made` False: only a name for a folder that an item will make."""
        path = self.name()
        tops = [folder for folder in self.folders if "/" not in folder]
        if tops and self.rng.random() < 0.2:
            path = f"{self.rng.choice(tops)}/{path}"
        elif self.rng.random() < 0.15:
            path = f"{path}/{self.name()}"
        if made:
            self.tree.mkdir(path)
            self.folders.append(path)
        return path

    def folder(self) -> str:
        if self.folders and self.rng.random() < 0.6:
            return self.rng.choice(self.folders)
        return self.new_folder()

    def line(self) -> str:
        """Two or three filler words, sometimes a number; no word that an item speaks of."""
        words = self.rng.sample(self.filler, self.rng.choice((2, 3)))
        return " ".join([*words, str(self.rng.randrange(10, 100))] if self.rng.random() < 0.3 else words)

    def lines(self, low: int = 2, high: int = 5) -> list[str]:
        return [self.line() for _ in range(self.rng.randint(low, high))]

    def new_file(
        self, folder: str | None = None, ext: str | None = None, lines: list[str] | None = None, mode: int = 0o644
    ) -> str:
        folder = self.folder() if folder is None else folder
        path = f"{folder}/{self.name()}.{ext or self.ext()}".removeprefix("/")
        self.tree.put(path, File("\n".join(lines or self.lines()) + "\n", mode))
        return path

    def any_file(self, mode: int = 0o644) -> str:
        """A file for an item to work on: now and then one that an earlier item makes, each once."""
        if self._made and self.rng.random() < 0.2:
            return self._made.pop(self.rng.randrange(len(self._made)))
        return self.new_file(mode=mode)

    def edited_file(self, lines: list[str] | None = None) -> str:
        """A file for an item to edit: now and then the one that must keep its permissions."""
        path = self.rules.mode
        if path and not self._edited_under_rule and self.rng.random() < 0.4:
            self._edited_under_rule = True
            self.tree.files[path] = replace(self.tree.files[path], text="\n".join(lines or self.lines()) + "\n")
            return path
        return self.new_file(lines=lines) if lines else self.any_file()

    def target(self, folder: str | None = None, ext: str | None = None) -> str:
        """A path for a new file in a folder that exists, or at the top."""
        if folder is None:
            folder = self.rng.choice(self.folders) if self.folders and self.rng.random() < 0.3 else ""
        ext = ext or self.rng.choice(("txt", "txt", "txt", "md", "out"))
        self._made.append(f"{folder}/{self.name()}.{ext}".removeprefix("/"))
        return self._made[-1]

    def pattern(self, anywhere: float = 0.3, files: int = 2) -> Pattern:
        """Draw which files; see that there are some, and that a rule stands in the way now and then."""
        fixed = self.rules.fixed
        if self.rng.random() < anywhere:
            ext = self.ext()
            folders = [self.new_folder() if len(self.folders) < 2 else self.folder() for _ in range(files)]
            if self.rules.keep:
                self.new_file(self.rules.keep, ext)
            for folder in folders:
                self.new_file(folder, ext)
            spare = fixed if fixed and fixed.endswith(f".{ext}") else None
            return Pattern(None, ext, self.rules.keep, spare)
        if fixed and self.rng.random() < 0.5:
            folder, ext, spare = folder_of(fixed), fixed.rpartition(".")[2], fixed
        else:
            folder, ext = self.folder(), self.ext()
            spare = fixed if fixed and folder_of(fixed) == folder and fixed.endswith(f".{ext}") else None
        for _ in range(self.rng.randint(files, files + 1)):
            self.new_file(folder, ext)
        if self.rng.random() < 0.7:
            self.new_file(folder, self.other_ext(ext))  # something that the pattern must leave
        return Pattern(folder, ext, spare=spare)


def misspelled(path: str, rng: random.Random) -> str:
    """A path with one letter of its last part left out, doubled or swapped with the next."""
    folder, _, last = path.rpartition("/")
    at = rng.randrange(len(last) - 1)
    kind = rng.randrange(3)
    if kind == 0:
        wrong = last[:at] + last[at + 1 :]
    elif kind == 1:
        wrong = last[:at] + last[at] + last[at:]
    else:
        wrong = last[:at] + last[at + 1] + last[at] + last[at + 2 :]
    return f"{folder}/{wrong}".removeprefix("/")


def _without_note(text: str) -> str:
    """A result without the line in brackets by which the loop tells of a limit. No generated text has such a line."""
    body, _, last = text.rpartition("\n")
    return body if last.startswith("[") and last.endswith("]") else text


class Hand:
    """The expert's hand: calls tools, reads results, and says as much as the effort asks for.

    low: no thinking, no checks. high: a phrase per call, checks where a mistake is likely. max: checks after each
    item. `slips` is how many mistakes it makes on the way (a path typed wrong, a folder not made first), each of
    which fails without harm and is put right by what the error says. `checking` False: the task is too long for checks.
    """

    def __init__(self, effort: Effort, rng: random.Random, tree: Tree, slips: int = 0, checking: bool = True):
        self.effort: Effort = effort
        self.rng = rng
        self.label = ""  # "Item 3: ", said once with the first thought of an item
        self._tree = tree
        self._slips = slips
        self._checking = checking

    def think(self, thought: str) -> str:
        if self.effort == "low" or not thought:
            return ""
        label, self.label = self.label, ""
        return f"{label}{thought}." if label else f"{thought[0].upper()}{thought[1:]}."

    def call(self, tool: str, thought: str = "", **arguments: Any) -> Reading:
        """Call a tool that must succeed and return its text."""
        (result,) = yield Move(think=self.think(thought), calls=((tool, arguments),))
        if result.is_error:
            raise WorldError(f"the expert's {tool} {arguments} failed: {result.text}")
        return _without_note(result.text)

    def shell(
        self, command: str, thought: str = "", *, path: str = "", early: str = "", ok: Iterable[int] = (0,)
    ) -> Reading:
        """Run a command and return its standard output.

        `path` occurs in the command and may be misspelled in a slip; `early` is what a hasty hand runs first and must
        fail. Both only where failing does no harm.
        """
        if self._slips and (path or early) and self.rng.random() < 0.5:
            slip = misspelled(path, self.rng) if path else ""
            wrong = command.replace(path, slip, 1) if path else early
            if slip != path and slip not in self._tree.files and slip not in self._tree.folders:
                self._slips -= 1
                yield from self._shell(wrong, thought, range(1, 256), slip=True)
                thought = f"that failed, the path is {path}" if path else "that failed, the folder must be made first"
        return (yield from self._shell(command, thought, ok))

    def _shell(self, command: str, thought: str, ok: Iterable[int], slip: bool = False) -> Reading:
        (result,) = yield Move(think=self.think(thought), calls=(("shell", {"command": command}),), slip=slip)
        head, _, rest = _without_note(result.text).partition("\n")
        if not head.startswith("exit ") or int(head.removeprefix("exit ")) not in ok:
            raise WorldError(f"the expert's command `{command}` ended with {result.text!r}")
        return ("\n" + rest).partition("\nstderr:")[0].strip("\n")

    def check(self, command: str, risky: bool = False, ok: Iterable[int] = (0,)) -> Steps:
        """Look at what an item did. Only for effort max, and for high where it is risky."""
        if self._checking and (self.effort == "max" or (self.effort == "high" and risky)):
            yield from self._shell(command, "check it", ok)
