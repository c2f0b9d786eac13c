"""Permissions: set them, report them, find files by them."""

from dataclasses import replace

from longstep.worlds.terminal.draft import MODES, Draft, Hand, Item, Pattern, Steps
from longstep.worlds.terminal.tree import Clash, Tree, base, folder_of


def _mode(tree: Tree, path: str) -> int:
    mode = tree.get(path).mode
    if mode is None:
        raise Clash(f"the mode of {path} is free")
    return mode


def _set(tree: Tree, path: str, mode: int) -> None:
    tree.files[path] = replace(tree.get(path), mode=mode)


def set_mode(d: Draft) -> Item:
    before, mode = d.rng.sample(MODES, 2)
    path = d.any_file(before)

    def effect(tree: Tree) -> None:
        _set(tree, path, mode)

    def work(h: Hand) -> Steps:
        yield from h.shell(f"chmod {mode:o} {path}", f"set {path} to {mode:o}", path=path)
        yield from h.check(f"stat -c %a {path}")

    forms = ("Set the permissions of {p} to {m}", "Give {p} the mode {m}", "Change the mode of {p} to {m}")
    return Item(d.say(*forms, p=path, m=f"{mode:o}"), effect, work)


def set_mode_of_kind(d: Draft) -> Item:
    mode = d.rng.choice([m for m in MODES if m != 0o644])
    kind = d.pattern(anywhere=0.4)
    spared = d.rules.mode  # a draw that hits it without sparing it breaks this rule and is drawn anew
    if spared and d.rng.random() < 0.5:  # the file that must keep its permissions is one of the kind
        folder, ext = folder_of(spared), spared.rpartition(".")[2]
        d.new_file(folder, ext)
        d.new_file(folder, ext)
        kind = Pattern(folder, ext, spare=spared)

    def effect(tree: Tree) -> None:
        for path in kind.matches(tree):
            _set(tree, path, mode)

    def work(h: Hand) -> Steps:
        command = f"chmod {mode:o} {kind.glob}" if kind.glob else f"{kind.find} -exec chmod {mode:o} {{}} +"
        yield from h.shell(command, f"set {kind.short} to {mode:o}")
        look = f"find {kind.folder or '.'} -name '*.{kind.ext}' -perm {mode:o}"
        yield from h.check(look, risky=kind.glob is None)

    forms = (
        "Set the permissions of every .{e} file {w} to {m}",
        "Give all .{e} files {w} the mode {m}",
        "Change the mode of each .{e} file {w} to {m}",
    )
    return Item(d.say(*forms, e=kind.ext, w=kind.said, m=f"{mode:o}"), effect, work)


def report_mode(d: Draft) -> Item:
    path, out = d.new_file(mode=d.rng.choice(MODES)), d.target()

    def effect(tree: Tree) -> None:
        tree.report(out, f"{_mode(tree, path):o}")

    def work(h: Hand) -> Steps:
        yield from h.shell(f"stat -c %a {path} > {out}", f"write the mode of {path} to {out}", path=path)
        yield from h.check(f"cat {out}")

    forms = (
        "Write the permissions of {p} as three digits to {o}",
        "Put the mode of {p} (three digits) into {o}",
    )
    return Item(d.say(*forms, p=path, o=out), effect, work)


def same_mode(d: Draft) -> Item:
    """The mode must be seen first."""
    before, mode = d.rng.sample(MODES, 2)
    source, path = d.new_file(mode=mode), d.new_file(mode=before)

    def effect(tree: Tree) -> None:
        if _mode(tree, source) == _mode(tree, path):
            raise Clash("the modes are the same already")
        _set(tree, path, _mode(tree, source))

    def work(h: Hand) -> Steps:
        found = yield from h.shell(f"stat -c %a {source}", f"see the mode of {source}", path=source)
        yield from h.shell(f"chmod {found} {path}", f"it is {found}, set {path} to {found}")
        yield from h.check(f"stat -c %a {path}")

    forms = (
        "Give {p} the same permissions as {s}",
        "Set the mode of {p} to that of {s}",
        "Look up the mode of {s} and give {p} the same",
    )
    return Item(d.say(*forms, p=path, s=source), effect, work)


def list_by_mode(d: Draft) -> Item:
    folder, out = d.new_folder(), d.target("")
    wanted, other = d.rng.sample(MODES, 2)
    for mode in (wanted, wanted, other, other):
        d.new_file(folder, mode=mode)

    def effect(tree: Tree) -> None:
        paths = tree.below(folder)
        found = [p for p in paths if _mode(tree, p) == wanted]
        if len(found) < 2:
            raise Clash(f"too few files with mode {wanted:o}")
        tree.report(out, "\n".join(found))

    def work(h: Hand) -> Steps:
        command = f"find {folder} -type f -perm {wanted:o} | sort > {out}"
        yield from h.shell(command, f"list the files with mode {wanted:o} below {folder} in {out}")
        yield from h.check(f"cat {out}")

    forms = (
        "Write the paths of the files below {f} with mode {m} to {o}, sorted",
        "List all files below {f} that have the permissions {m} in {o}, one path per line, sorted",
    )
    return Item(d.say(*forms, f=folder, m=f"{wanted:o}", o=out), effect, work)


def private_one(d: Draft) -> Item:
    """Which file has the odd mode must be seen first."""
    folder = d.new_folder()
    common, odd, new = d.rng.sample(MODES, 3)
    for mode in d.rng.sample((common, common, odd), 3):
        d.new_file(folder, mode=mode)

    def effect(tree: Tree) -> None:
        found = [p for p in tree.below(folder) if _mode(tree, p) == odd]
        if len(found) != 1:
            raise Clash(f"not exactly one file with mode {odd:o}")
        _set(tree, found[0], new)

    def work(h: Hand) -> Steps:
        seen = yield from h.shell(
            f"find {folder} -type f -perm {odd:o}", f"find the file with mode {odd:o}", path=folder
        )
        yield from h.shell(f"chmod {new:o} '{seen}'", f"it is {base(seen)}, set it to {new:o}")
        yield from h.check(f"stat -c %a {seen}")

    forms = (
        "One file in {f} has the mode {a}: change it to {b}",
        "Find the file in {f} with permissions {a} and set them to {b}",
    )
    return Item(d.say(*forms, f=folder, a=f"{odd:o}", b=f"{new:o}"), effect, work)


SINGLE = (set_mode,)
ATOMS = (*SINGLE, set_mode_of_kind, report_mode, same_mode, list_by_mode, private_one)
