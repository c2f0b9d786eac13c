"""Logs: lines of `TIME LEVEL SERVICE id=N words`, counted, cut out and merged."""

from collections import Counter

from longstep.worlds.terminal.draft import Draft, Hand, Item, Steps
from longstep.worlds.terminal.tree import Clash, File, Tree

LEVELS = ("ERROR", "WARN", "INFO", "DEBUG")


def _log(d: Draft) -> str:
    """A log of the task, perhaps one that another item uses too."""
    if d.logs and d.rng.random() < 0.6:
        return d.rng.choice(d.logs)
    services = [d.name() for _ in range(d.rng.randint(3, 4))]
    ids = [d.rng.randrange(1000, 10000) for _ in range(4)]
    at = d.rng.randrange(6 * 3600, 18 * 3600)
    lines = []
    for _ in range(d.rng.randint(14, 30)):
        at += d.rng.randrange(3, 400)
        level, service = d.rng.choice(LEVELS), d.rng.choice((*services, services[0]))
        clock = f"{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}"
        lines.append(f"{clock} {level} {service} id={d.rng.choice(ids)} {' '.join(d.rng.sample(d.filler, 2))}")
    path = f"{d.folder()}/{d.name()}.log"
    d.tree.put(path, File("\n".join(lines) + "\n"))
    d.logs.append(path)
    return path


def _rows(tree: Tree, path: str) -> list[list[str]]:
    return [line.split(" ") for line in tree.lines(path)]


def _some(lines: list[str], least: int = 2) -> str:
    if len(lines) < least:
        raise Clash("too few lines")
    return "\n".join(lines)


def count_level(d: Draft) -> Item:
    log, level, out = _log(d), d.rng.choice(LEVELS), d.target()

    def effect(tree: Tree) -> None:
        count = sum(row[1] == level for row in _rows(tree, log))
        if count < 2:
            raise Clash("too few lines")
        tree.report(out, str(count))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"grep -c ' {level} ' {log} > {out}", f"count {level} in {log} into {out}", path=log)
        yield from h.check(f"cat {out}")

    forms = (
        "Write the number of {l} lines in {p} to {o}",
        "Count the {l} lines of {p} and write the number to {o}",
        "Put the number of {l} lines of {p} into {o}",
    )
    return Item(d.say(*forms, l=level, p=log, o=out), effect, work)


def lines_of_level(d: Draft) -> Item:
    log, level, out = _log(d), d.rng.choice(LEVELS), d.target(ext="log" if d.rng.random() < 0.5 else None)

    def effect(tree: Tree) -> None:
        tree.report(out, _some([x for x in tree.lines(log) if x.split(" ")[1] == level]))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"grep ' {level} ' {log} > {out}", f"write the {level} lines of {log} to {out}", path=log)
        yield from h.check(f"wc -l {out}")

    forms = (
        "Write all {l} lines of {p} to {o}",
        "Copy the {l} lines of {p} into {o}",
        "Extract the {l} lines from {p} to {o}",
    )
    return Item(d.say(*forms, l=level, p=log, o=out), effect, work)


def lines_without(d: Draft) -> Item:
    log, level, out = _log(d), d.rng.choice(LEVELS), d.target(ext="log" if d.rng.random() < 0.5 else None)

    def effect(tree: Tree) -> None:
        rest = [x for x in tree.lines(log) if x.split(" ")[1] != level]
        if len(rest) == len(tree.lines(log)):
            raise Clash(f"no {level} in {log}")
        tree.report(out, _some(rest))

    def work(h: Hand) -> Steps:
        thought = f"write {log} without {level} lines to {out}"
        yield from h.shell(f"grep -v ' {level} ' {log} > {out}", thought, path=log)
        yield from h.check(f"wc -l {out}")

    forms = (
        "Write {p} without its {l} lines to {o}",
        "Copy all lines of {p} except the {l} lines to {o}",
        "Make {o} from {p} by leaving out the {l} lines",
    )
    return Item(d.say(*forms, l=level, p=log, o=out), effect, work)


def lines_of_id(d: Draft) -> Item:
    log, out = _log(d), d.target()
    wanted = d.rng.choice(d.tree.lines(log)).split(" ")[3]

    def effect(tree: Tree) -> None:
        tree.report(out, _some([x for x in tree.lines(log) if x.split(" ")[3] == wanted]))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"grep {wanted} {log} > {out}", f"write the lines with {wanted} to {out}", path=log)
        yield from h.check(f"wc -l {out}")

    forms = ("Write the lines with {i} in {p} to {o}", "Extract every line with {i} from {p} to {o}")
    return Item(d.say(*forms, i=wanted, p=log, o=out), effect, work)


def last_of_level(d: Draft) -> Item:
    log, level, out = _log(d), d.rng.choice(LEVELS), d.target()
    which, command = d.rng.choice((("first", "head -1"), ("last", "tail -1")))

    def effect(tree: Tree) -> None:
        lines = _some([x for x in tree.lines(log) if x.split(" ")[1] == level]).split("\n")
        tree.report(out, lines[0 if which == "first" else -1])

    def work(h: Hand) -> Steps:
        thought = f"write the {which} {level} line of {log} to {out}"
        yield from h.shell(f"grep ' {level} ' {log} | {command} > {out}", thought)
        yield from h.check(f"cat {out}")

    forms = (
        "Write the {n} {l} line of {p} to {o}",
        "Copy the {n} {l} line of {p} into {o}",
        "Put the {n} {l} line from {p} into {o}",
    )
    return Item(d.say(*forms, n=which, l=level, p=log, o=out), effect, work)


def per_service(d: Draft) -> Item:
    log, level, out = _log(d), d.rng.choice(LEVELS[:2]), d.target()

    def effect(tree: Tree) -> None:
        counts = Counter(row[2] for row in _rows(tree, log) if row[1] == level)
        tree.report(out, _some([f"{service} {n}" for service, n in sorted(counts.items())]))

    def work(h: Hand) -> Steps:
        pipe = "cut -d' ' -f3 | sort | uniq -c | awk '{print $2, $1}'"
        thought = f"count {level} per service in {log} into {out}"
        yield from h.shell(f"grep ' {level} ' {log} | {pipe} > {out}", thought)
        yield from h.check(f"cat {out}", risky=True)

    forms = (
        "Write one line 'SERVICE COUNT' per service with its number of {l} lines in {p} to {o}, sorted by service",
        "For each service in {p} write 'SERVICE COUNT' of its {l} lines to {o}, sorted by service",
    )
    return Item(d.say(*forms, l=level, p=log, o=out), effect, work)


def _top(tree: Tree, log: str, level: str) -> str:
    ranked = Counter(row[2] for row in _rows(tree, log) if row[1] == level).most_common(2)
    if len(ranked) < 2 or ranked[0][1] == ranked[1][1]:
        raise Clash("no single service has the most")
    return ranked[0][0]


def _ranking(log: str, level: str) -> str:
    return f"grep ' {level} ' {log} | cut -d' ' -f3 | sort | uniq -c | sort -rn | head -3"


def top_service(d: Draft) -> Item:
    """The worst service must be seen before its name can be written."""
    log, level, out = _log(d), d.rng.choice(LEVELS[:2]), d.target()

    def effect(tree: Tree) -> None:
        tree.report(out, _top(tree, log, level))

    def work(h: Hand) -> Steps:
        ranked = yield from h.shell(_ranking(log, level), f"rank the services of {log} by {level} lines")
        top = ranked.split("\n")[0].split()[1]
        yield from h.shell(f"echo {top} > {out}", f"the most has {top}, write it to {out}")
        yield from h.check(f"cat {out}")

    forms = (
        "Write the name of the service with the most {l} lines in {p} to {o}",
        "Find which service has the most {l} lines in {p} and write its name to {o}",
    )
    return Item(d.say(*forms, l=level, p=log, o=out), effect, work)


def lines_of_top(d: Draft) -> Item:
    log, level, out = _log(d), d.rng.choice(LEVELS[:2]), d.target()

    def effect(tree: Tree) -> None:
        top = _top(tree, log, level)
        tree.report(out, _some([x for x in tree.lines(log) if x.split(" ")[2] == top]))

    def work(h: Hand) -> Steps:
        ranked = yield from h.shell(_ranking(log, level), f"rank the services of {log} by {level} lines")
        top = ranked.split("\n")[0].split()[1]
        yield from h.shell(f"grep ' {top} ' {log} > {out}", f"the most has {top}, write its lines to {out}")
        yield from h.check(f"wc -l {out}")

    forms = (
        "Write all lines of the service with the most {l} lines in {p} to {o}",
        "Find which service has the most {l} lines in {p} and copy all its lines to {o}",
    )
    return Item(d.say(*forms, l=level, p=log, o=out), effect, work)


def merge(d: Draft) -> Item:
    folder, out = d.new_folder(), d.target("")
    for _ in range(d.rng.randint(2, 3)):
        d.new_file(folder, "log", d.lines(2, 3))

    def effect(tree: Tree) -> None:
        logs = [p for p in tree.inside(folder) if p.endswith(".log")]
        if len(logs) < 2:
            raise Clash(f"fewer than two logs in {folder}")
        tree.report(out, "".join(tree.text(p) for p in logs))

    def work(h: Hand) -> Steps:
        yield from h.shell(f"cat {folder}/*.log > {out}", f"merge the logs of {folder} into {out}", path=folder)
        yield from h.check(f"wc -l {out}")

    forms = (
        "Merge all .log files in {f} into {o}, in the order of their names",
        "Write the .log files in {f} one after the other to {o}, sorted by name",
    )
    return Item(d.say(*forms, f=folder, o=out), effect, work)


TOP = (top_service, lines_of_top)
ATOMS = (*TOP, count_level, lines_of_level, lines_without, lines_of_id, last_of_level, per_service, merge)
