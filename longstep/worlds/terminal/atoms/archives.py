"""Archives: pack, unpack, list, take one member, compress, expand."""

from dataclasses import replace

from longstep.worlds.terminal.draft import Draft, Hand, Item, Steps
from longstep.worlds.terminal.tree import Clash, File, Tree, folder_of


def _tar(d: Draft, num_files: int = 3) -> str:
    """An archive in the start tree: one folder with a few files."""
    root, exts = d.name(), [d.ext()]
    exts += [d.other_ext(exts[0]) for _ in range(num_files - 1)]
    members = tuple((f"{root}/{d.name()}.{ext}", "\n".join(d.lines(1, 3)) + "\n") for ext in exts)
    path = d.target(d.folder() if d.rng.random() < 0.7 else "", "tar.gz")
    d.tree.put(path, File(pack="tar", members=members))
    return path


def _members(tree: Tree, path: str) -> dict[str, str]:
    file = tree.get(path)
    if file.pack != "tar":
        raise Clash(f"{path} is no archive")
    return dict(file.members)


def pack(d: Draft) -> Item:
    folder, out = d.new_folder(), d.target("", "tar.gz")
    for _ in range(d.rng.randint(2, 3)):
        d.new_file(folder)

    def effect(tree: Tree) -> None:
        paths = tree.below(folder)
        if not paths or any(tree.files[p].pack for p in paths):
            raise Clash(f"{folder} is not plain")
        members = tuple((p, tree.files[p].text) for p in paths)
        tree.put(out, File(pack="tar", members=members, mode=None))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"tar -czf {out} {folder}", f"pack {folder} into {out}")
        yield from h.check(f"tar -tzf {out}")

    forms = ("Pack the folder {f} into {o}", "Make an archive {o} of the folder {f}", "Archive the folder {f} as {o}")
    return Item(d.say(*forms, f=folder, o=out), effect, work)


def unpack(d: Draft) -> Item:
    path, target = _tar(d, d.rng.randint(2, 3)), d.new_folder(made=False)

    def effect(tree: Tree) -> None:
        if target in tree.folders:
            raise Clash(f"{target} exists")
        for name, text in _members(tree, path).items():
            tree.put(f"{target}/{name}", File(text, mode=None))

    def work(h: Hand) -> Steps:
        extract = f"tar -xzf {path} -C {target}"
        yield from h.shell(f"mkdir -p {target} && {extract}", f"unpack {path} into {target}", early=extract)
        yield from h.check(f"find {target} -type f")

    forms = (
        "Unpack {p} into the new folder {t}",
        "Extract the archive {p} into a new folder {t}",
        "Extract {p} into {t} (make it first)",
    )
    return Item(d.say(*forms, p=path, t=target), effect, work)


def list_members(d: Draft) -> Item:
    path, out = _tar(d), d.target()

    def effect(tree: Tree) -> None:
        tree.report(out, "\n".join(sorted(_members(tree, path))))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"tar -tzf {path} | grep -v '/$' | sort > {out}", f"list the files of {path} in {out}")
        yield from h.check(f"cat {out}")

    forms = (
        "Write the paths of the files in the archive {p} to {o}, sorted",
        "List the files in {p} in {o}, one path per line, sorted",
    )
    return Item(d.say(*forms, p=path, o=out), effect, work)


def take_member(d: Draft) -> Item:
    """The member's path must be seen in the listing."""
    path, target = _tar(d, 4), d.new_folder(made=False)
    ext = d.rng.choice(d.tree.files[path].members)[0].rpartition(".")[2]

    def effect(tree: Tree) -> None:
        found = {name: text for name, text in _members(tree, path).items() if name.endswith(f".{ext}")}
        if len(found) != 1 or target in tree.folders:
            raise Clash(f"not exactly one .{ext} file in {path}")
        ((name, text),) = found.items()
        tree.put(f"{target}/{name}", File(text, mode=None))

    def work(h: Hand) -> Steps:
        listing = yield from h.shell(f"tar -tzf {path}", f"see what is in {path}", path=path)
        name = next(x for x in listing.splitlines() if x.endswith(f".{ext}"))
        thought = f"it is {name}, extract it into {target}"
        yield from h.shell(f"mkdir -p {target} && tar -xzf {path} -C {target} '{name}'", thought)
        yield from h.check(f"find {target} -type f")

    forms = (
        "From {p} extract only the .{e} file into the new folder {t}",
        "Extract just the one .{e} file of {p} into a new folder {t}",
    )
    return Item(d.say(*forms, p=path, e=ext, t=target), effect, work)


def compress(d: Draft) -> Item:
    path = d.any_file()

    def effect(tree: Tree) -> None:
        tree.text(path)
        tree.put(f"{path}.gz", replace(tree.take(path), pack="gz"))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"gzip {path}", f"compress {path}", path=path)
        yield from h.check(f"ls {folder_of(path) or '.'}")

    forms = ("Compress {p} with gzip", "Gzip {p} (so that only {p}.gz is left)", "Replace {p} by {p}.gz")
    return Item(d.say(*forms, p=path), effect, work)


def expand(d: Draft) -> Item:
    path = d.new_file()
    d.tree.put(f"{path}.gz", replace(d.tree.take(path), pack="gz"))

    def effect(tree: Tree) -> None:
        tree.put(path, replace(tree.take(f"{path}.gz"), pack=""))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"gunzip {path}.gz", f"expand {path}.gz", path=f"{path}.gz")
        yield from h.check(f"ls {folder_of(path) or '.'}")

    forms = ("Decompress {p}.gz", "Gunzip {p}.gz (so that only {p} is left)", "Replace {p}.gz by {p}")
    return Item(d.say(*forms, p=path), effect, work)


SINGLE = (compress, expand)
ATOMS = (*SINGLE, pack, unpack, list_members, take_member)
