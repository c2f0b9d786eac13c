"""Lines and words in text files: replace, append, put first, delete, set a key."""

from longstep.worlds.terminal.draft import Draft, Hand, Item, Steps
from longstep.worlds.terminal.tree import Clash, File, Tree, folder_of


def _with(d: Draft, *words: str) -> list[str]:
    """Filler lines, some of which hold the words."""
    lines = d.lines(3, 5)
    for at in d.rng.sample(range(len(lines)), d.rng.randint(1, 2)):
        lines[at] = " ".join(d.rng.sample([lines[at], d.rng.choice(words)], 2))
    return lines


def _replaced(text: str, old: str, new: str) -> str:
    if old not in text:
        raise Clash(f"no {old} to replace")
    return text.replace(old, new)


def replace_word(d: Draft) -> Item:
    old, new = d.word(), d.word()
    path = d.edited_file(lines=_with(d, old))

    def effect(tree: Tree) -> None:
        tree.write(path, _replaced(tree.text(path), old, new))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"sed -i 's/{old}/{new}/g' {path}", f"replace {old} by {new} in {path}", path=path)
        yield from h.check(f"grep -c '{new}' {path}")

    forms = (
        "In {p} replace every '{a}' with '{b}'",
        "Replace '{a}' by '{b}' everywhere in {p}",
        "In {p} change '{a}' to '{b}'",
    )
    return Item(d.say(*forms, p=path, a=old, b=new), effect, work)


def replace_in_kind(d: Draft) -> Item:
    old, new = d.word(), d.word()
    kind = d.pattern(anywhere=0.4)
    for path in [*kind.matches(d.tree)[:3], *([kind.spare] if kind.spare else [])]:
        d.tree.files[path] = File("\n".join(_with(d, old)) + "\n", d.tree.files[path].mode)

    def effect(tree: Tree) -> None:
        hits = [p for p in kind.matches(tree) if old in tree.text(p)]
        if len(hits) < 2:
            raise Clash(f"{old} stands in fewer than two files")
        for path in hits:
            tree.write(path, tree.text(path).replace(old, new))

    def work(h: Hand) -> Steps:
        sed = f"sed -i 's/{old}/{new}/g'"
        command = f"{sed} {kind.glob}" if kind.glob else f"{kind.find} -exec {sed} {{}} +"
        yield from h.shell(command, f"replace {old} by {new} in {kind.short}")
        yield from h.check(f"grep -rl '{new}' .", risky=kind.glob is None)

    forms = (
        "Replace '{a}' with '{b}' in every .{e} file {w}",
        "In all .{e} files {w} replace every '{a}' with '{b}'",
        "Change '{a}' to '{b}' in each .{e} file {w}",
    )
    return Item(d.say(*forms, a=old, b=new, e=kind.ext, w=kind.said), effect, work)


def append_line(d: Draft) -> Item:
    path, line = d.edited_file(), d.line()

    def effect(tree: Tree) -> None:
        tree.write(path, f"{tree.text(path)}{line}\n")

    def work(h: Hand) -> Steps:
        yield from h.shell(f"echo '{line}' >> {path}", f"append the line to {path}")
        yield from h.check(f"tail -1 {path}")

    forms = ("Append this line to {p}: '{x}'", "Add a last line to {p}: '{x}'", "At the end of {p} add the line: '{x}'")
    return Item(d.say(*forms, p=path, x=line), effect, work)


def put_first(d: Draft) -> Item:
    path, line = d.edited_file(), d.line()

    def effect(tree: Tree) -> None:
        tree.write(path, f"{line}\n{tree.text(path)}")

    def work(h: Hand) -> Steps:
        yield from h.shell(f"sed -i '1i {line}' {path}", f"put the line at the top of {path}", path=path)
        yield from h.check(f"head -1 {path}")

    forms = (
        "Put this line at the top of {p}: '{x}'",
        "Add a new first line to {p}: '{x}'",
        "Start {p} with the line: '{x}'",
    )
    return Item(d.say(*forms, p=path, x=line), effect, work)


def delete_lines(d: Draft) -> Item:
    word = d.word()
    path = d.edited_file(lines=_with(d, word))

    def effect(tree: Tree) -> None:
        kept = [line for line in tree.lines(path) if word not in line]
        if not kept:
            raise Clash(f"{path} would be empty")
        tree.write(path, "\n".join(kept) + "\n")

    def work(h: Hand) -> Steps:
        yield from h.shell(f"sed -i '/{word}/d' {path}", f"delete the lines with {word} from {path}", path=path)
        yield from h.check(f"grep -c '{word}' {path}", ok=(1,))

    forms = (
        "Delete the lines that contain '{x}' from {p}",
        "Remove every line with '{x}' from {p}",
        "From {p} delete all lines with '{x}'",
    )
    return Item(d.say(*forms, p=path, x=word), effect, work)


def line_number(d: Draft) -> Item:
    lines = d.lines(4, 6)
    path, line, number = d.edited_file(lines), d.line(), d.rng.randint(2, len(lines) - 1)

    def effect(tree: Tree) -> None:
        now = tree.lines(path)
        if len(now) < number:
            raise Clash(f"{path} has no line {number}")
        now[number - 1] = line
        tree.write(path, "\n".join(now) + "\n")

    def work(h: Hand) -> Steps:
        yield from h.shell(f"sed -i '{number}s/.*/{line}/' {path}", f"change line {number} of {path}", path=path)
        yield from h.check(f"sed -n {number}p {path}")

    forms = (
        "Make line {n} of {p} read: '{x}'",
        "Replace line {n} of {p} with: '{x}'",
        "Change line {n} of {p} to: '{x}'",
    )
    return Item(d.say(*forms, n=number, p=path, x=line), effect, work)


def set_key(d: Draft) -> Item:
    """The old value must be seen before it can be edited."""
    keys = [d.word() for _ in range(3)]
    key, value = d.rng.choice(keys), d.rng.choice((d.word(), str(d.rng.randrange(100, 1000))))
    path = d.new_file(lines=[f"{k}={d.word()}" for k in keys], ext=d.rng.choice(("cfg", None)))

    def effect(tree: Tree) -> None:
        lines = tree.lines(path)
        hits = [i for i, line in enumerate(lines) if line.startswith(f"{key}=")]
        if len(hits) != 1:
            raise Clash(f"{key} is not set exactly once")
        lines[hits[0]] = f"{key}={value}"
        tree.write(path, "\n".join(lines) + "\n")

    def work(h: Hand) -> Steps:
        seen = yield from h.call("read_file", f"see what {key} is in {path}", path=path)
        old = next(x for line in seen.splitlines() if (x := line.partition("| ")[2]).startswith(f"{key}="))
        yield from h.call("edit_file", f"it is {old}, make it {key}={value}", path=path, old=old, new=f"{key}={value}")
        yield from h.check(f"grep '{key}' {path}")

    forms = (
        "Set '{k}' to '{v}' in {p}",
        "In {p} set the value of '{k}' to '{v}'",
        "Change the value of '{k}' in {p} to '{v}'",
    )
    return Item(d.say(*forms, k=key, v=value, p=path), effect, work)


def word_from_file(d: Draft) -> Item:
    """The new word is only in a file."""
    old, new = d.word(), d.word()
    path, source = d.new_file(lines=_with(d, old)), d.new_file(lines=[new])

    def effect(tree: Tree) -> None:
        found = tree.lines(source)
        if len(found) != 1 or " " in found[0]:
            raise Clash(f"{source} holds more than a word")
        tree.write(path, _replaced(tree.text(path), old, found[0]))

    def work(h: Hand) -> Steps:
        found = yield from h.shell(f"cat {source}", f"see the word in {source}", path=source)
        yield from h.shell(f"sed -i 's/{old}/{found}/g' {path}", f"it is {found}, replace {old} by {found} in {path}")
        yield from h.check(f"grep -c '{found}' {path}")

    forms = (
        "In {p} replace every '{a}' with the word in {s}",
        "Replace '{a}' in {p} by the word that stands in {s}",
        "Read the word in {s} and put it in place of '{a}' in {p}",
    )
    return Item(d.say(*forms, p=path, a=old, s=source), effect, work)


def if_word(d: Draft) -> Item:
    """What to do depends on what a look says."""
    word, line = d.word(), d.line()
    there = d.rng.random() < 0.5
    path = d.new_file(lines=_with(d, word) if there else None)
    d.new_file(folder_of(path))

    def effect(tree: Tree) -> None:
        if word in tree.text(path):
            tree.take(path)
        else:
            tree.write(path, f"{tree.text(path)}{line}\n")

    def work(h: Hand) -> Steps:
        count = yield from h.shell(f"grep -c '{word}' {path}", f"see whether {word} is in {path}", ok=(0, 1))
        if count == "0":
            yield from h.shell(f"echo '{line}' >> {path}", "it is not, append the line")
            yield from h.check(f"tail -1 {path}")
        else:
            yield from h.shell(f"rm {path}", f"it is, delete {path}")
            yield from h.check(f"ls {folder_of(path)}")

    forms = (
        "If {p} contains '{w}', delete it; if not, append this line to it: '{x}'",
        "Delete {p} if it contains '{w}', else add this last line to it: '{x}'",
    )
    return Item(d.say(*forms, p=path, w=word, x=line), effect, work)


def if_there(d: Draft) -> Item:
    """A file that may not exist: asking for it may fail, and that is the answer."""
    word, other = d.word(), d.word()
    there = d.rng.random() < 0.5
    path = d.new_file() if there else d.target(d.folder(), d.ext())
    out = d.target()

    def effect(tree: Tree) -> None:
        tree.report(out, word if path in tree.files else other)

    def work(h: Hand) -> Steps:
        seen = yield from h.shell(f"ls {path}", f"see whether {path} exists", ok=(0, 1, 2))
        found, said = (word, "it does") if seen else (other, "it does not")
        yield from h.shell(f"echo '{found}' > {out}", f"{said}, write {found} to {out}")
        yield from h.check(f"cat {out}")

    forms = (
        "If there is a file {p}, write '{w}' to {o}; if not, write '{v}' to {o}",
        "Write '{w}' to {o} if {p} exists, else write '{v}' to {o}",
    )
    return Item(d.say(*forms, p=path, w=word, v=other, o=out), effect, work)


def _holder(tree: Tree, folder: str, word: str) -> str:
    hits = [p for p in tree.below(folder) if word in tree.files[p].text]
    if len(hits) != 1 or tree.text(hits[0]).count(word) != 1:
        raise Clash(f"{word} does not stand in exactly one file of {folder}")
    return hits[0]


def find_and_append(d: Draft) -> Item:
    """Which file is meant must be found."""
    word, folder, line = d.word(), d.new_folder(), d.line()
    for lines in (d.lines(), [*d.lines(), f"{d.line()} {word}"], d.lines()):
        d.new_file(folder, lines=lines)

    def effect(tree: Tree) -> None:
        path = _holder(tree, folder, word)
        tree.write(path, f"{tree.text(path)}{line}\n")

    def work(h: Hand) -> Steps:
        found = yield from h.call("find_text", f"find {word} in {folder}", text=word, path=folder)
        path = found.split(":")[0]
        yield from h.shell(f"echo '{line}' >> {path}", f"it is in {path}, append the line")
        yield from h.check(f"tail -1 {path}")

    forms = (
        "One file in {f} contains '{w}': append this line to it: '{x}'",
        "Find the file in {f} that contains '{w}' and add this last line: '{x}'",
    )
    return Item(d.say(*forms, f=folder, w=word, x=line), effect, work)


def find_and_move(d: Draft) -> Item:
    word, folder, target = d.word(), d.new_folder(), d.folder()
    for lines in (d.lines(), [*d.lines(), f"{d.line()} {word}"], d.lines()):
        d.new_file(folder, lines=lines)

    def effect(tree: Tree) -> None:
        path = _holder(tree, folder, word)
        if target not in tree.folders or folder_of(path) == target:
            raise Clash(f"{target} is no place for {path}")
        tree.put(f"{target}/{path.rpartition('/')[2]}", tree.take(path))

    def work(h: Hand) -> Steps:
        found = yield from h.call("find_text", f"find {word} in {folder}", text=word, path=folder)
        path = found.split(":")[0]
        yield from h.shell(f"mv {path} {target}/", f"it is in {path}, move it to {target}")
        yield from h.check(f"ls {target}")

    forms = (
        "One file in {f} contains '{w}': move it to {t}",
        "Find the file in {f} that contains '{w}' and move it to {t}",
    )
    return Item(d.say(*forms, f=folder, w=word, t=target), effect, work)


SINGLE = (replace_word, append_line, put_first, delete_lines, line_number)
FOUND = (find_and_append, find_and_move)
DECIDED = (if_word, if_there)
ATOMS = (*SINGLE, *FOUND, *DECIDED, replace_in_kind, set_key, word_from_file)
