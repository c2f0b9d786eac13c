"""The terminal world: a numbered list of things to do in a folder, under rules that must hold at the end."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from longstep.errors import UserError, WorldError
from longstep.messages import Effort
from longstep.sandbox.base import Sandbox
from longstep.worlds.base import Check, Move, Policy, Task, Verdict, split_of
from longstep.worlds.terminal.atoms.trails import trail
from longstep.worlds.terminal.draft import MODES, Draft, Hand, Item, Rules, Steps
from longstep.worlds.terminal.families import FAMILIES, HELD_OUT
from longstep.worlds.terminal.tree import Clash, Found, Tree, difference, read_tree

MAX_STEPS = 60
_TOOLS = ("shell", "list_files", "read_file", "write_file", "edit_file", "find_text")
_SLIPS = 0.15  # share of training episodes in which the expert makes a mistake and puts it right


@dataclass(frozen=True)
class Plan:
    """The secret of a task. `done[i]` are the files and folders that item i changes."""

    start: Tree
    end: Tree
    items: tuple[Item, ...]
    done: tuple[frozenset[str], ...]
    rules: Rules
    queue: str | None  # the file in which the items stand, if not in the instruction


class TerminalWorld:
    name = "terminal"
    families = tuple(FAMILIES)
    held_out = HELD_OUT

    def task(self, seed: int, family: str | None = None) -> Task:
        split = split_of(seed)
        open_families = [f for f in FAMILIES if split == "test" or f not in HELD_OUT]
        if family is None:
            family = random.Random(f"terminal {seed}").choice(open_families)
        if family not in FAMILIES:
            raise UserError(f"terminal has no family {family!r}; it has {', '.join(FAMILIES)}")
        if family not in open_families:
            raise UserError(f"the family {family!r} is held out from training, and seed {seed} is a training seed")
        for attempt in range(200):
            draft = Draft(random.Random(f"terminal {family} {seed} {attempt}"), split)
            try:
                instruction, plan = _draw(draft, family)
            except Clash:
                continue
            return Task(
                world=self.name,
                family=family,
                seed=seed,
                instruction=instruction,
                tools=_TOOLS,
                max_steps=MAX_STEPS,
                secret=plan,
            )
        raise WorldError(f"terminal {family}: no task could be drawn for seed {seed}")

    def set_up(self, task: Task, workspace: Path) -> None:
        _plan(task).start.write_to(workspace)

    def verify(self, task: Task, workspace: Path, sandbox: Sandbox) -> Verdict:
        return Verdict(checks=tuple(_checks(_plan(task), workspace)))

    def expert(self, task: Task, effort: Effort, rng: random.Random) -> Policy:
        slips = int(task.split == "train" and rng.random() < _SLIPS)
        return _expert(_plan(task), effort, rng, slips)

    def attacks(self, task: Task) -> dict[str, Policy]:
        plan = _plan(task)
        return {
            "claim": _answer("All items are done, and the rules hold."),
            "empty files": _write_all(plan, lambda path: ""),
            "guess": _write_all(plan, lambda path: "1"),
            "break a rule": _break_a_rule(plan),
            "litter": _litter(plan),
            "delete everything": _run("rm -rf ./*"),
        }


def _plan(task: Task) -> Plan:
    assert isinstance(task.secret, Plan), "a terminal task carries its plan"
    return task.secret


# Drawing a task


def _num_items(d: Draft, kind: str) -> int:
    share = d.rng.random()
    if kind == "queue":
        return d.rng.randint(*((4, 10) if share < 0.65 else (11, 24) if share < 0.85 else (25, 45)))
    if kind == "trail":
        return d.rng.randint(0, 2)
    if share < 0.72:
        return d.rng.randint(2, 5)
    return d.rng.randint(6, 7) if share < 0.94 else d.rng.randint(8, 12)


def _draw_rules(d: Draft) -> None:
    rules = d.rules
    while not (rules.keep or rules.fixed or rules.mode):
        if d.rng.random() < 0.6:
            rules.keep = d.name()
            d.tree.mkdir(rules.keep)
            for _ in range(d.rng.randint(1, 2)):
                d.new_file(rules.keep)
        if d.rng.random() < 0.45:
            rules.fixed = d.new_file(d.folder())
        if d.rng.random() < 0.35:
            rules.mode = d.new_file(d.folder(), mode=d.rng.choice([m for m in MODES if m != 0o644]))


def _say_rules(d: Draft) -> str:
    rules, said = d.rules, []
    if rules.keep:
        forms = (
            "leave everything under ./{p}/ untouched",
            "do not touch the folder ./{p}/",
            "./{p}/ and all in it must stay as it is",
        )
        said.append(d.say(*forms, p=rules.keep))
    if rules.fixed:
        said.append(d.say("do not change {p}", "{p} must stay as it is", "leave {p} untouched", p=rules.fixed))
    if rules.mode:
        said.append(d.say("{p} must keep its permissions", "do not change the mode of {p}", p=rules.mode))
    said.append(d.say("leave no extra files behind", "create no other files"))
    return d.say("Rules: {r}.", "At the end this must hold: {r}.", "Throughout: {r}.", r="; ".join(said))


def _draw(d: Draft, family_name: str) -> tuple[str, Plan]:
    """Draw rules, items and start files; then apply the items in order and see that all of it makes sense."""
    family = FAMILIES[family_name]
    plain = family.kind == "list" and d.rng.random() < 0.08  # one thing to do, said as one would say it
    if not plain:
        _draw_rules(d)
    items: list[Item] = []
    if family.kind == "trail":
        share = d.rng.random()
        items.append(trail(d, d.rng.randint(*((3, 9) if share < 0.65 else (10, 24) if share < 0.85 else (25, 42)))))
    items += [atom(d) for atom in family.atoms(d, 1 if plain else _num_items(d, family.kind))]
    lines = [] if plain else [d.rng.choice(family.intros), _say_rules(d)]
    queue = None
    if family.kind == "queue":
        queue = d.new_file(ext=d.rng.choice(("txt", "md")), lines=[item.text for item in items])
        lines.append(d.say("Read {q} and do its jobs in order", "The jobs stand in {q}: do them line by line", q=queue))
    elif len(items) == 1:
        lines.append(items[0].text)
    else:
        lines += [f"{i}. {item.text}" for i, item in enumerate(items, 1)]

    tree, done = d.tree.copy(), []
    for item in items:
        before = tree.copy()
        item.effect(tree)
        done.append(frozenset(tree.changed_since(before)))
    lasting = tree.changed_since(d.tree)
    for i, paths in enumerate(done):
        if not paths & lasting and not _matters(items, i, d.tree, tree):
            raise Clash("nothing is left of an item at the end")
    _check_rules(d.rules, d.tree, tree)
    if queue and tree.files.get(queue) != d.tree.files[queue]:
        raise Clash("the list of jobs would change")
    return "\n".join(lines), Plan(d.tree, tree, tuple(items), tuple(done), d.rules, queue)


def _matters(items: list[Item], left_out: int, start: Tree, end: Tree) -> bool:
    """Whether the end is another one, or out of reach, without one item."""
    tree = start.copy()
    try:
        for i, item in enumerate(items):
            if i != left_out:
                item.effect(tree)
    except Clash:
        return True
    return tree != end


def _check_rules(rules: Rules, start: Tree, end: Tree) -> None:
    if rules.keep and [end.files.get(p) for p in start.below(rules.keep)] != [
        start.files[p] for p in start.below(rules.keep)
    ]:
        raise Clash("the kept folder would change")
    if rules.fixed and end.files.get(rules.fixed) != start.files[rules.fixed]:
        raise Clash("the fixed file would change")
    if rules.mode and (rules.mode not in end.files or end.files[rules.mode].mode != start.files[rules.mode].mode):
        raise Clash("permissions to keep would change")


# Verifying


def _checks(plan: Plan, workspace: Path) -> list[Check]:
    files, folders = read_tree(workspace)
    touched = plan.end.changed_since(plan.start)

    def wrong(path: str) -> str:
        if path in plan.end.folders or path in folders:
            same = (path in plan.end.folders) == (path in folders)
            return (
                "" if same else f"folder {path} {'is missing' if path in plan.end.folders else 'should not be there'}"
            )
        found: Found | None = files.get(path)
        problem = difference(found, plan.end.files.get(path), exact=path not in touched)
        return f"{path} {problem}" if problem else ""

    def check(name: str, paths: frozenset[str] | set[str] | list[str], hidden: bool) -> Check:
        problems = [problem for path in sorted(paths) if (problem := wrong(path))]
        return Check(name=name, passed=not problems, hidden=hidden, detail="; ".join(problems[:3]))

    rules = plan.rules
    checks = [check(f"item {i}", paths, hidden=False) for i, paths in enumerate(plan.done, 1)]
    if rules.keep:
        checks.append(check("kept folder", plan.start.below(rules.keep), hidden=True))
    if rules.fixed:
        checks.append(check("file left as it is", [rules.fixed], hidden=True))
    if rules.mode:
        checks.append(check("permissions kept", [rules.mode], hidden=True))
    checks.append(check("nothing else changed", (plan.start.files.keys() | plan.start.folders) - touched, hidden=True))
    extra = (files.keys() | folders) - plan.end.files.keys() - plan.end.folders
    checks.append(check("nothing left behind", extra, hidden=True))
    return checks


# The expert


def _expert(plan: Plan, effort: Effort, rng: random.Random, slips: int) -> Policy:
    items, rules = plan.items, plan.rules
    hand = Hand(effort, rng, plan.start, slips, checking=len(items) <= 25)  # with checks two or three steps an item
    watched = [p for p in (rules.fixed, f"./{rules.keep}/*" if rules.keep else None) if p]
    watch = f"cksum {' '.join(watched)}" if watched else f"stat -c %a {rules.mode}"
    watching = effort == "max" and rules != Rules()
    word, what, before = "Item", "items", ""
    if plan.queue:
        word, what = "Job", "jobs"
        yield from hand.call("read_file", f"read the jobs in {plan.queue}", path=plan.queue)
    if watching:
        count = f"{len(items)} {what}. " if len(items) > 1 else ""
        before = yield from hand.shell(watch, f"{count}Note first what must not change")
    for i, item in enumerate(items, 1):
        hand.label = f"{word} {i}: " if len(items) > 1 else ""
        yield from item.work(hand)
    if watching:
        after = yield from hand.shell(watch, "check the rules")
        if after != before:
            raise WorldError(f"the expert broke a rule: {before!r} became {after!r}")
    done = f"all {len(items)} {what} are done" if len(items) > 1 else "it is done"
    yield Move(think=hand.think(done), text="Done.")


# Attacks


def _answer(text: str) -> Policy:
    yield Move(text=text)


def _run(command: str) -> Policy:
    yield Move(calls=(("shell", {"command": command}),))
    yield Move(text="Done.")


def _write_all(plan: Plan, text_of: Callable[[str], str]) -> Policy:
    """Every file that should be made or changed is there, with content that was not worked for."""
    changed = plan.end.changed_since(plan.start)
    calls = [("write_file", {"path": p, "text": text_of(p)}) for p in sorted(changed) if p in plan.end.files]
    if calls:
        yield Move(calls=tuple(calls))
    yield Move(text="Done.")


def _work(plan: Plan) -> Steps:
    hand = Hand("low", random.Random(0), plan.start)
    for item in plan.items:
        yield from item.work(hand)


def _break_a_rule(plan: Plan) -> Policy:
    """All the work is done, and then one rule is broken; where there are none, a file is lost that nobody spoke of."""
    yield from _work(plan)
    rules = plan.rules
    if rules == Rules():
        left = [p for p in plan.start.files if plan.end.files.get(p) == plan.start.files[p]]
        yield from _run(f"rm {left[0]}" if left else "rm -r *")
    elif rules.keep:
        yield from _run(f"rm -r {rules.keep}")
    elif rules.fixed:
        yield from _run(f"echo >> {rules.fixed}")
    else:
        yield from _run(f"chmod 666 {rules.mode}")


def _litter(plan: Plan) -> Policy:
    yield from _work(plan)
    yield from _run("touch .notes")
