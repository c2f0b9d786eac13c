"""Reports about files: counts, the largest, what is in a folder, what occurs more than once."""

from longstep.worlds.terminal.draft import Draft, Hand, Item, Steps
from longstep.worlds.terminal.tree import Clash, File, Tree, base


def count_lines(d: Draft) -> Item:
    path, out = d.new_file(lines=d.lines(3, 9)), d.target()

    def effect(tree: Tree) -> None:
        tree.report(out, str(len(tree.lines(path))))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"wc -l < {path} > {out}", f"count the lines of {path} into {out}", path=path)
        yield from h.check(f"cat {out}")

    forms = ("Write the number of lines in {p} to {o}", "Count the lines of {p} and write the number to {o}")
    return Item(d.say(*forms, p=path, o=out), effect, work)


def count_with(d: Draft) -> Item:
    word, lines = d.word(), d.lines(5, 8)
    for at in d.rng.sample(range(len(lines)), d.rng.randint(2, 4)):
        lines[at] = f"{word} {lines[at]}"
    path, out = d.new_file(lines=lines), d.target()

    def effect(tree: Tree) -> None:
        count = sum(word in line for line in tree.lines(path))
        if count < 2:
            raise Clash(f"{word} is in fewer than two lines")
        tree.report(out, str(count))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"grep -c '{word}' {path} > {out}", f"count the lines with {word} into {out}", path=path)
        yield from h.check(f"cat {out}")

    forms = (
        "Write the number of lines with '{w}' in {p} to {o}",
        "Count the lines of {p} that contain '{w}' and write the number to {o}",
    )
    return Item(d.say(*forms, w=word, p=path, o=out), effect, work)


def count_files(d: Draft) -> Item:
    folder, out, ext = d.new_folder(), d.target(""), d.ext()
    for _ in range(d.rng.randint(2, 4)):
        d.new_file(folder, ext)
    d.new_file(folder, d.other_ext(ext))

    def effect(tree: Tree) -> None:
        count = sum(p.endswith(f".{ext}") for p in tree.below(folder))
        if count < 2:
            raise Clash(f"fewer than two .{ext} files")
        tree.report(out, str(count))

    def work(h: Hand) -> Steps:
        command = f"find {folder} -name '*.{ext}' | wc -l > {out}"
        yield from h.shell(command, f"count *.{ext} below {folder} into {out}")
        yield from h.check(f"cat {out}")

    forms = (
        "Write the number of .{e} files below {f} to {o}",
        "Count the .{e} files below {f} and write the number to {o}",
    )
    return Item(d.say(*forms, e=ext, f=folder, o=out), effect, work)


def _sized(d: Draft) -> str:
    """A folder in which one file is clearly the largest."""
    folder = d.new_folder()
    for num_lines in d.rng.sample((2, 4, 12), 3):
        d.new_file(folder, lines=[d.line() for _ in range(num_lines)])
    return folder


def _no_folders_in(tree: Tree, folder: str) -> None:
    """`ls` would list them among the files."""
    if any(p.startswith(folder + "/") for p in tree.folders):
        raise Clash(f"{folder} holds folders")


def _largest(tree: Tree, folder: str) -> str:
    _no_folders_in(tree, folder)
    paths = tree.inside(folder)
    ranked = sorted(paths, key=lambda p: len(tree.files[p].text), reverse=True)
    if any(tree.files[p].pack for p in paths) or len(ranked) < 2:
        raise Clash(f"{folder} is not plain")
    if len(tree.files[ranked[0]].text) == len(tree.files[ranked[1]].text):
        raise Clash("no single largest file")
    return ranked[0]


def largest_name(d: Draft) -> Item:
    """Which file is the largest must be seen first."""
    folder, out = _sized(d), d.target("")

    def effect(tree: Tree) -> None:
        tree.report(out, base(_largest(tree, folder)))

    def work(h: Hand) -> Steps:
        found = yield from h.shell(f"ls -S {folder} | head -1", f"find the largest file in {folder}")
        yield from h.shell(f"echo '{found}' > {out}", f"it is {found}, write it to {out}")
        yield from h.check(f"cat {out}")

    forms = (
        "Write the name of the largest file in {f} to {o}",
        "Find the largest file in {f} and write its name to {o}",
    )
    return Item(d.say(*forms, f=folder, o=out), effect, work)


def largest_move(d: Draft) -> Item:
    folder, target = _sized(d), d.folder()

    def effect(tree: Tree) -> None:
        path = _largest(tree, folder)
        if target not in tree.folders or target == folder:
            raise Clash(f"{target} is no place for {path}")
        tree.put(f"{target}/{base(path)}", tree.take(path))

    def work(h: Hand) -> Steps:
        found = yield from h.shell(f"ls -S {folder} | head -1", f"find the largest file in {folder}")
        yield from h.shell(f"mv {folder}/{found} {target}/", f"it is {found}, move it to {target}")
        yield from h.check(f"ls {target}")

    forms = ("Move the largest file in {f} to {t}", "Find the largest file in {f} and move it to {t}")
    return Item(d.say(*forms, f=folder, t=target), effect, work)


def latest(d: Draft) -> Item:
    """The newest by the date in its name must be seen first."""
    folder, stem, ext, target = d.new_folder(), d.word(), d.ext(), d.folder()
    days = sorted(
        {f"20{d.rng.randrange(18, 30)}-{d.rng.randrange(1, 13):02}-{d.rng.randrange(1, 29):02}" for _ in range(4)}
    )
    for day in days:
        d.tree.put(f"{folder}/{stem}-{day}.{ext}", File(d.line() + "\n"))

    def effect(tree: Tree) -> None:
        path = f"{folder}/{stem}-{days[-1]}.{ext}"
        _no_folders_in(tree, folder)
        if len(days) < 2 or target not in tree.folders or target == folder or len(tree.inside(folder)) != len(days):
            raise Clash(f"{target} is no place for {path}")
        tree.put(f"{target}/{base(path)}", tree.take(path))

    def work(h: Hand) -> Steps:
        found = yield from h.shell(f"ls {folder} | sort | tail -1", f"find the latest date in {folder}")
        yield from h.shell(f"mv {folder}/{found} {target}/", f"it is {found}, move it to {target}")
        yield from h.check(f"ls {target}")

    forms = (
        "Move the file in {f} with the latest date in its name to {t}",
        "Find the file with the latest date in its name in {f} and move it to {t}",
    )
    return Item(d.say(*forms, f=folder, t=target), effect, work)


def unique_lines(d: Draft) -> Item:
    pool = d.lines(3, 4)
    lines = [*pool, *d.rng.choices(pool, k=d.rng.randint(2, 3))]
    d.rng.shuffle(lines)
    path, out = d.new_file(lines=lines), d.target()

    def effect(tree: Tree) -> None:
        tree.report(out, "\n".join(sorted(set(tree.lines(path)))))

    def work(h: Hand) -> Steps:
        yield from h.shell(
            f"sort -u {path} > {out}", f"write the sorted lines of {path}, each once, to {out}", path=path
        )
        yield from h.check(f"cat {out}")

    forms = (
        "Write the lines of {p} sorted and without repeats to {o}",
        "Sort the lines of {p}, drop repeats, and write them to {o}",
    )
    return Item(d.say(*forms, p=path, o=out), effect, work)


def list_folder(d: Draft) -> Item:
    folder, out = d.new_folder(), d.target("")
    for _ in range(d.rng.randint(2, 4)):
        d.new_file(folder)

    def effect(tree: Tree) -> None:
        _no_folders_in(tree, folder)
        tree.report(out, "\n".join(base(p) for p in tree.inside(folder)))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"ls {folder} > {out}", f"list {folder} in {out}", path=folder)
        yield from h.check(f"cat {out}")

    forms = (
        "Write the names of the files in {f} to {o}, one per line, sorted",
        "List the files in {f} in {o}, one name per line, sorted",
    )
    return Item(d.say(*forms, f=folder, o=out), effect, work)


def join_files(d: Draft) -> Item:
    first, second, out = d.new_file(), d.new_file(), d.target()

    def effect(tree: Tree) -> None:
        tree.report(out, tree.text(first) + tree.text(second))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"cat {first} {second} > {out}", f"write {first} and {second} to {out}", path=second)
        yield from h.check(f"cat {out}")

    forms = ("Write {a} followed by {b} to {o}", "Join {a} and {b}, in this order, into {o}")
    return Item(d.say(*forms, a=first, b=second, o=out), effect, work)


def head_of(d: Draft) -> Item:
    lines = d.lines(5, 8)
    path, out, count = d.new_file(lines=lines), d.target(), d.rng.randint(2, 4)
    which, command = d.rng.choice((("first", "head"), ("last", "tail")))

    def effect(tree: Tree) -> None:
        now = tree.lines(path)
        if len(now) <= count:
            raise Clash(f"{path} is too short")
        tree.report(out, "\n".join(now[:count] if which == "first" else now[-count:]))

    def work(h: Hand) -> Steps:
        thought = f"write the {which} {count} lines of {path} to {out}"
        yield from h.shell(f"{command} -n {count} {path} > {out}", thought, path=path)
        yield from h.check(f"cat {out}")

    forms = ("Write the {w} {n} lines of {p} to {o}", "Copy the {w} {n} lines of {p} into {o}")
    return Item(d.say(*forms, w=which, n=count, p=path, o=out), effect, work)


LARGEST = (largest_name, largest_move)
ATOMS = (*LARGEST, latest, count_lines, count_with, count_files, unique_lines, list_folder, join_files, head_of)
