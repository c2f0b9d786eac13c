"""A trail: each file gives a word and names the next, so that every step depends on the one before."""

from itertools import pairwise

from longstep.worlds.terminal.draft import Draft, Hand, Item, Steps
from longstep.worlds.terminal.tree import Clash, File, Tree


def _fields(text: str) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def trail(d: Draft, num_files: int) -> Item:
    start, wanted, stray = _lay(d, num_files)
    out = d.target("", "txt")

    def effect(tree: Tree) -> None:
        words, path = [], start
        while path:
            fields = _fields(tree.text(path))
            if not wanted or fields.get("mark") == wanted:
                words.append(fields["word"])
            path = fields.get("next", "")
        if len(words) < 2 or stray not in tree.files:
            raise Clash("too few words on the trail")
        tree.report(out, "\n".join(words))

    def work(h: Hand) -> Steps:
        path, note, thought = start, "", f"start at {start}"
        while path:
            # Nothing of `wanted` or the tree is used that the instruction or the last result has not shown.
            fields = _fields((yield from h.shell(f"{note}cat {path}", thought, path="" if note else path)))
            path = fields.get("next", "")
            taken = not wanted or fields["mark"] == wanted
            note = f"echo {fields['word']} >> {out}; " if taken else ""
            thought = (f"word {fields['word']}" if taken else f"mark {fields['mark']}, skip") + f", next {path}"
        last = f"{thought.partition(', next')[0]}, the end"
        if note:
            yield from h.shell(note.removesuffix("; "), last)
        yield from h.check(f"cat {out}")

    forms = (
        "Follow the trail from {s}: each file has a word and names the next file. {w} to {o}, one per line",
        "Start at {s} and go from file to file as each one says, to the end. {w} to {o}, one per line",
    )
    if wanted:
        what = f"In this order write the words of the files with mark: {wanted}"
    else:
        what = "In this order write all the words"
    return Item(d.say(*forms, s=start, w=what, o=out), effect, work)


def _lay(d: Draft, num_files: int) -> tuple[str, str, str]:
    """Write the files of a trail and one that leads into it. Returns the start, the wanted mark or "", the stray."""
    folders = [d.new_folder() for _ in range(min(3, 1 + num_files // 4))]
    paths = [f"{d.rng.choice(folders)}/{d.name()}.{d.ext()}" for _ in range(num_files + 1)]
    marks = [d.word(), d.word()] if d.rng.random() < 0.5 else []
    next_of = dict(pairwise(paths[:num_files]))  # the last file of the trail names none
    next_of[paths[-1]] = d.rng.choice(paths[:-1])
    for path in paths:
        lines = [f"mark: {d.rng.choice(marks)}"] if marks else []
        lines += [f"word: {d.word()}", f"next: {next_of[path]}" if path in next_of else "end"]
        d.tree.put(path, File("\n".join(lines) + "\n"))
    return paths[0], marks[0] if marks else "", paths[-1]
