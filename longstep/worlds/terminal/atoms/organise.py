"""Folders and files: make, move, rename, copy, delete."""

from longstep.worlds.terminal.draft import Draft, Hand, Item, Steps
from longstep.worlds.terminal.tree import Clash, File, Tree, base, folder_of


def make_folder(d: Draft) -> Item:
    path = d.new_folder(made=False)

    def effect(tree: Tree) -> None:
        if path in tree.folders:
            raise Clash(f"{path} exists")
        tree.mkdir(path)

    def work(h: Hand) -> Steps:
        early = f"mkdir {path}" if "/" in path and folder_of(path) not in d.tree.folders else ""
        yield from h.shell(f"mkdir -p {path}", f"make {path}", early=early)
        yield from h.check(f"ls -d {path}")

    return Item(d.say("Create the folder {p}", "Make a new folder {p}", "Make the folder {p}", p=path), effect, work)


def move_kind(d: Draft) -> Item:
    kind, target = d.pattern(anywhere=0.0), d.new_folder(made=False)

    def effect(tree: Tree) -> None:
        paths = kind.matches(tree)
        tree.mkdir(target)
        for path in paths:
            tree.put(f"{target}/{base(path)}", tree.take(path))

    def work(h: Hand) -> Steps:
        move = f"mv {kind.glob} {target}/" if kind.glob else f"{kind.find} -exec mv {{}} {target}/ \\;"
        early = move if kind.glob else ""
        yield from h.shell(f"mkdir -p {target} && {move}", f"move {kind.short} to {target}", early=early)
        yield from h.check(f"ls {kind.folder} {target}", risky=kind.glob is None)

    forms = (
        "Move every .{e} file in {a} to the new folder {b}",
        "Move all .{e} files from {a} into {b} (make it first)",
        "Put every .{e} file of {a} into a new folder {b}",
    )
    return Item(d.say(*forms, e=kind.ext, a=kind.folder, b=target), effect, work)


def move_file(d: Draft) -> Item:
    source, target = d.any_file(), d.folder()

    def effect(tree: Tree) -> None:
        if target not in tree.folders or target == folder_of(source):
            raise Clash(f"{target} is no place for {source}")
        tree.put(f"{target}/{base(source)}", tree.take(source))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"mv {source} {target}/", f"move {source} to {target}", path=source)
        yield from h.check(f"ls {target}")

    return Item(d.say("Move {a} to the folder {b}", "Move {a} into {b}", a=source, b=target), effect, work)


def rename_file(d: Draft) -> Item:
    source = d.any_file()
    target = d.target(folder_of(source), d.rng.choice((source.rpartition(".")[2], d.ext())))

    def effect(tree: Tree) -> None:
        tree.put(target, tree.take(source))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"mv {source} {target}", f"rename {source} to {target}", path=source)
        yield from h.check(f"ls {folder_of(source) or '.'}")

    forms = ("Rename {a} to {b}", "Rename {a}: its new name is {b}", "Rename the file {a} to {b}")
    return Item(d.say(*forms, a=source, b=target), effect, work)


def copy_file(d: Draft) -> Item:
    source, target = d.any_file(), d.target()

    def effect(tree: Tree) -> None:
        tree.put(target, File(tree.text(source), mode=None))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"cp {source} {target}", f"copy {source} to {target}", path=source)
        yield from h.check(f"cmp {source} {target}")

    return Item(d.say("Copy {a} to {b}", "Make a copy of {a} as {b}", a=source, b=target), effect, work)


def delete_file(d: Draft) -> Item:
    path = d.new_file()
    d.new_file(folder_of(path))  # a neighbour that stays

    def effect(tree: Tree) -> None:
        tree.take(path)

    def work(h: Hand) -> Steps:
        yield from h.shell(f"rm {path}", f"delete {path}", path=path)
        yield from h.check(f"ls {folder_of(path)}")

    return Item(d.say("Delete {p}", "Remove the file {p}", "Delete the file {p}", p=path), effect, work)


def delete_kind(d: Draft) -> Item:
    kind = d.pattern(anywhere=0.6)

    def effect(tree: Tree) -> None:
        for path in kind.matches(tree):
            tree.take(path)

    def work(h: Hand) -> Steps:
        command = f"rm {kind.glob}" if kind.glob else f"{kind.find} -delete"
        yield from h.shell(command, f"delete {kind.short}")
        yield from h.check(f"find . -name '*.{kind.ext}'", risky=kind.glob is None)

    forms = ("Delete every .{e} file {w}", "Remove all .{e} files {w}", "Delete all files that end in .{e} {w}")
    return Item(d.say(*forms, e=kind.ext, w=kind.said), effect, work)


def rename_kind(d: Draft) -> Item:
    kind = d.pattern(anywhere=0.0)
    new = d.other_ext(kind.ext)

    def effect(tree: Tree) -> None:
        for path in kind.matches(tree):
            tree.put(f"{path.removesuffix(kind.ext)}{new}", tree.take(path))

    def work(h: Hand) -> Steps:
        spare = f'[ "$f" = {kind.spare} ] || ' if kind.spare else ""
        loop = f'for f in {kind.folder}/*.{kind.ext}; do {spare}mv "$f" "${{f%.{kind.ext}}}.{new}"; done'
        yield from h.shell(loop, f"rename {kind.short} to .{new}")
        yield from h.check(f"ls {kind.folder}", risky=True)

    forms = (
        "Rename every .{a} file in {f} so that it ends in .{b}",
        "Give all .{a} files in {f} the extension .{b}",
        "Change the extension of every .{a} file in {f} to .{b}",
    )
    return Item(d.say(*forms, a=kind.ext, b=new, f=kind.folder), effect, work)


def move_prefix(d: Draft) -> Item:
    folder, target, prefix = d.new_folder(), d.new_folder(made=False), d.word()
    for _ in range(d.rng.randint(2, 3)):
        d.tree.put(f"{folder}/{prefix}-{d.name()}.{d.ext()}", File(d.line() + "\n"))
    d.new_file(folder)

    def effect(tree: Tree) -> None:
        paths = [p for p in tree.inside(folder) if base(p).startswith(prefix)]
        if len(paths) < 2 or len(paths) < sum(base(p).startswith(prefix) for p in tree.below(folder)):
            raise Clash(f"fewer than two files start with {prefix}, or some that may or may not be meant")
        tree.mkdir(target)
        for path in paths:
            tree.put(f"{target}/{base(path)}", tree.take(path))

    def work(h: Hand) -> Steps:
        move = f"mv {folder}/{prefix}* {target}/"
        yield from h.shell(f"mkdir -p {target} && {move}", f"move {prefix}* from {folder} to {target}", early=move)
        yield from h.check(f"ls {folder} {target}")

    forms = (
        "Move the files in {a} whose name starts with '{x}' to the new folder {b}",
        "Put all files of {a} that start with '{x}' into a new folder {b}",
    )
    return Item(d.say(*forms, a=folder, x=prefix, b=target), effect, work)


def delete_empty(d: Draft) -> Item:
    folder = d.new_folder()
    for _ in range(d.rng.randint(1, 3)):
        d.tree.put(f"{folder}/{d.name()}.{d.ext()}", File(""))
    d.new_file(folder)

    def effect(tree: Tree) -> None:
        paths = [p for p in tree.below(folder) if not tree.files[p].pack and not tree.files[p].text]
        if not paths:
            raise Clash(f"nothing empty in {folder}")
        for path in paths:
            tree.take(path)

    def work(h: Hand) -> Steps:
        yield from h.shell(f"find {folder} -type f -empty -delete", f"delete the empty files in {folder}", path=folder)
        yield from h.check(f"ls {folder}")

    forms = ("Delete every empty file in {a}", "Remove the files in {a} that are empty")
    return Item(d.say(*forms, a=folder), effect, work)


def write_file(d: Draft) -> Item:
    path, lines = d.target(d.folder()), [d.line() for _ in range(d.rng.randint(1, 2))]

    def effect(tree: Tree) -> None:
        tree.report(path, "\n".join(lines))

    def work(h: Hand) -> Steps:
        yield from h.call("write_file", f"write {path}", path=path, text="\n".join(lines) + "\n")
        yield from h.check(f"cat {path}")

    if len(lines) == 1:
        forms = ("Create {p} with this one line: '{x}'", "Write a file {p} with the line: '{x}'")
        return Item(d.say(*forms, p=path, x=lines[0]), effect, work)
    forms = ("Create {p} with two lines: '{x}' and '{y}'", "Write a file {p} with these two lines: '{x}' and '{y}'")
    return Item(d.say(*forms, p=path, x=lines[0], y=lines[1]), effect, work)


def move_only(d: Draft) -> Item:
    """The file's name must be seen first."""
    folder, target, ext = d.new_folder(), d.folder(), d.ext()
    d.new_file(folder, ext)
    for _ in range(2):
        d.new_file(folder, d.other_ext(ext))
    new = d.target(target, ext)

    def effect(tree: Tree) -> None:
        paths = [p for p in tree.below(folder) if p.endswith(f".{ext}")]
        if len(paths) != 1 or folder_of(paths[0]) != folder or target not in tree.folders:
            raise Clash(f"not exactly one .{ext} file in {folder}")
        tree.put(new, tree.take(paths[0]))

    def work(h: Hand) -> Steps:
        listing = yield from h.call("list_files", f"find the .{ext} file in {folder}", path=folder)
        found = [x for line in listing.splitlines() if (x := line.split("  ")[0]).endswith(f".{ext}")]
        yield from h.shell(f"mv {folder}/{found[0]} {new}", f"it is {found[0]}, move it to {new}")
        yield from h.check(f"ls {target}")

    forms = (
        "There is one .{e} file in {a}: move it to {n}",
        "Move the only .{e} file in {a} to {n}",
        "Find the one .{e} file in {a} and move it to {n}",
    )
    return Item(d.say(*forms, e=ext, a=folder, n=new), effect, work)


def delete_listed(d: Draft) -> Item:
    """Which files are meant stands in a list."""
    folder = d.new_folder()
    listed = [d.new_file(folder) for _ in range(d.rng.randint(2, 3))]
    d.new_file(folder)
    source = d.new_file(lines=listed)

    def effect(tree: Tree) -> None:
        for path in tree.lines(source):
            tree.take(path)

    def work(h: Hand) -> Steps:
        paths = yield from h.shell(f"cat {source}", f"see which files {source} lists", path=source)
        yield from h.shell(f"rm {' '.join(paths.splitlines())}", "delete them")
        yield from h.check(f"ls {folder}")

    forms = ("Delete the files that are listed in {s}", "Read {s} and remove each file that it names")
    return Item(d.say(*forms, s=source), effect, work)


SINGLE = (make_folder, move_file, rename_file, copy_file, delete_file)  # one short command each
ATOMS = (*SINGLE, move_kind, delete_kind, rename_kind, move_prefix, delete_empty, write_file, move_only, delete_listed)
