"""Tables with commas: a header, a name, a kind and two numbers in each row."""

from collections import Counter

from longstep.worlds.terminal.draft import Draft, Hand, Item, Reading, Steps
from longstep.worlds.terminal.tree import Clash, File, Tree


def _table(d: Draft) -> tuple[str, list[str], list[str]]:
    """Path, header, values of the second column. Numbers differ within a column, so that an order is an order."""
    if d.tables and d.rng.random() < 0.6:
        return d.rng.choice(d.tables)
    header = [d.word() for _ in range(4)]
    kinds = [d.word() for _ in range(d.rng.randint(2, 3))]
    num_rows = d.rng.randint(5, 8)
    numbers = [d.rng.sample(range(10, 100), num_rows) for _ in range(2)]
    rows = [[d.name(), d.rng.choice(kinds), str(a), str(b)] for a, b in zip(*numbers, strict=True)]
    path = f"{d.folder()}/{d.name()}.csv"
    d.tree.put(path, File("\n".join(",".join(row) for row in [header, *rows]) + "\n"))
    d.tables.append((path, header, kinds))
    return d.tables[-1]


def _cells(tree: Tree, path: str, column: str) -> tuple[list[list[str]], int]:
    """Rows and the index of a column."""
    header, *rows = [line.split(",") for line in tree.lines(path)]
    if header.count(column) != 1 or any(len(row) != len(header) for row in rows):
        raise Clash(f"{path} has no single column {column}")
    return rows, header.index(column)


def _number(h: Hand, path: str, column: str) -> Reading:
    """Look at the header and say which column it is, counted from 1."""
    header = yield from h.shell(f"head -1 {path}", f"see the columns of {path}", path=path)
    return str(header.split(",").index(column) + 1)


def column(d: Draft) -> Item:
    path, header, _ = _table(d)
    name, out = d.rng.choice(header), d.target()
    order = d.rng.choice(("", " sorted"))

    def effect(tree: Tree) -> None:
        rows, at = _cells(tree, path, name)
        cells = [row[at] for row in rows]
        tree.report(out, "\n".join(sorted(cells) if order else cells))

    def work(h: Hand) -> Steps:
        n = yield from _number(h, path, name)
        pipe = f"cut -d, -f{n}" + (" | sort" if order else "")
        yield from h.shell(f"tail -n +2 {path} | {pipe} > {out}", f"column {n} is {name}, write it{order} to {out}")
        yield from h.check(f"cat {out}")

    said = ", sorted" if order else ", in the order of the rows"
    forms = (
        "Write the column '{c}' of {p} without its header to {o}{s}",
        "Put the values of the column '{c}' of {p} into {o}{s}",
    )
    return Item(d.say(*forms, c=name, p=path, o=out, s=said), effect, work)


def total(d: Draft) -> Item:
    path, header, _ = _table(d)
    name, out = d.rng.choice(header[2:]), d.target()

    def effect(tree: Tree) -> None:
        rows, at = _cells(tree, path, name)
        tree.report(out, str(sum(int(row[at]) for row in rows)))

    def work(h: Hand) -> Steps:
        n = yield from _number(h, path, name)
        awk = f"awk -F, 'NR>1 {{s+=${n}}} END {{print s}}'"
        yield from h.shell(f"{awk} {path} > {out}", f"column {n} is {name}, sum it into {out}")
        yield from h.check(f"cat {out}")

    forms = (
        "Write the sum of the column '{c}' of {p} to {o}",
        "Add up the column '{c}' of {p} and write the total to {o}",
    )
    return Item(d.say(*forms, c=name, p=path, o=out), effect, work)


def rows_where(d: Draft) -> Item:
    path, header, kinds = _table(d)
    value, out = d.rng.choice(kinds), d.target()

    def effect(tree: Tree) -> None:
        rows, at = _cells(tree, path, header[1])
        found = [row[0] for row in rows if row[at] == value]
        if len(found) < 2:
            raise Clash(f"too few rows with {value}")
        tree.report(out, "\n".join(found))

    def work(h: Hand) -> Steps:
        n = yield from _number(h, path, header[1])
        awk = f"awk -F, '${n}==\"{value}\" {{print $1}}'"
        yield from h.shell(
            f"{awk} {path} > {out}", f"column {n} is {header[1]}, write column 1 of its {value} rows to {out}"
        )
        yield from h.check(f"cat {out}")

    forms = (
        "Write the first column of the rows of {p} whose '{c}' is '{v}' to {o}",
        "For the rows of {p} where '{c}' is '{v}' write the first column to {o}",
    )
    return Item(d.say(*forms, p=path, c=header[1], v=value, o=out), effect, work)


def extreme(d: Draft) -> Item:
    path, header, _ = _table(d)
    name, out = d.rng.choice(header[2:]), d.target()
    most, flag = d.rng.choice((("highest", "nr"), ("lowest", "n")))

    def effect(tree: Tree) -> None:
        rows, at = _cells(tree, path, name)
        ranked = sorted(rows, key=lambda row: int(row[at]), reverse=most == "highest")
        tree.report(out, ranked[0][0])

    def work(h: Hand) -> Steps:
        n = yield from _number(h, path, name)
        pipe = f"sort -t, -k{n},{n}{flag} | head -1 | cut -d, -f1"
        yield from h.shell(f"tail -n +2 {path} | {pipe} > {out}", f"column {n} is {name}, write the {most} to {out}")
        yield from h.check(f"cat {out}")

    forms = (
        "Write the first column of the row of {p} with the {m} '{c}' to {o}",
        "Find the row of {p} with the {m} '{c}' and write its first column to {o}",
    )
    return Item(d.say(*forms, p=path, m=most, c=name, o=out), effect, work)


def sort_rows(d: Draft) -> Item:
    path, header, _ = _table(d)
    name, out = d.rng.choice(header[2:]), d.target(ext="csv")
    order, flag = d.rng.choice((("highest first", "nr"), ("lowest first", "n")))

    def effect(tree: Tree) -> None:
        rows, at = _cells(tree, path, name)
        ranked = sorted(rows, key=lambda row: int(row[at]), reverse=flag == "nr")
        tree.report(out, "\n".join(",".join(row) for row in [tree.lines(path)[0].split(","), *ranked]))

    def work(h: Hand) -> Steps:
        n = yield from _number(h, path, name)
        command = f"(head -1 {path}; tail -n +2 {path} | sort -t, -k{n},{n}{flag}) > {out}"
        yield from h.shell(command, f"column {n} is {name}, sort by it, {order}")
        yield from h.check(f"head -3 {out}", risky=True)

    forms = (
        "Sort the rows of {p} by '{c}', {m}, and write header and rows to {o}",
        "Write {p} sorted by '{c}' ({m}, header kept) to {o}",
    )
    return Item(d.say(*forms, p=path, c=name, m=order, o=out), effect, work)


def count_values(d: Draft) -> Item:
    path, header, _ = _table(d)
    out = d.target()

    def effect(tree: Tree) -> None:
        rows, at = _cells(tree, path, header[1])
        tree.report(out, "\n".join(f"{v} {n}" for v, n in sorted(Counter(row[at] for row in rows).items())))

    def work(h: Hand) -> Steps:
        n = yield from _number(h, path, header[1])
        pipe = f"cut -d, -f{n} | sort | uniq -c | awk '{{print $2, $1}}'"
        yield from h.shell(
            f"tail -n +2 {path} | {pipe} > {out}", f"column {n} is {header[1]}, count its values into {out}"
        )
        yield from h.check(f"cat {out}", risky=True)

    forms = (
        "Write one line 'VALUE COUNT' per value of the column '{c}' of {p} to {o}, sorted by value",
        "For each value of the column '{c}' of {p} write 'VALUE COUNT' to {o}, sorted by value",
    )
    return Item(d.say(*forms, p=path, c=header[1], o=out), effect, work)


ATOMS = (column, total, rows_where, extreme, sort_rows, count_values)
