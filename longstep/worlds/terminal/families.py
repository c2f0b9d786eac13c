"""Families: which atoms meet in one task, and what the task calls itself.

Trained families never join archives with edits or permissions, nor permissions with edits, logs or tables. The two
families held out do nothing else, so that success on them measures new combinations of known atoms, under new words.
"""

from collections.abc import Callable
from dataclasses import dataclass

from longstep.worlds.terminal.atoms import archives, edits, logs, modes, organise, reports, tables
from longstep.worlds.terminal.draft import Draft, Item

Atom = Callable[[Draft], Item]

GROUPS: dict[str, tuple[Atom, ...]] = {
    "organise": organise.ATOMS,
    "edits": edits.ATOMS,
    "logs": logs.ATOMS,
    "tables": tables.ATOMS,
    "archives": archives.ATOMS,
    "modes": modes.ATOMS,
    "reports": reports.ATOMS,
}


@dataclass(frozen=True)
class Family:
    """`teams`: sets of groups of atoms; one task draws all its atoms from one team."""

    intros: tuple[str, ...]
    teams: tuple[tuple[tuple[Atom, ...], ...], ...]
    kind: str = "list"  # "queue": the items stand in a file; "trail": the first item is a trail

    def atoms(self, d: Draft, num_items: int) -> list[Atom]:
        """A group first and then an atom in it, so that a large group does not crowd out a small one."""
        team = d.rng.choice(self.teams)
        groups = list(team[:num_items])  # each group of the team at least once
        groups += [d.rng.choice(team) for _ in range(num_items - len(groups))]
        d.rng.shuffle(groups)
        return [d.rng.choice(group) for group in groups]


# The pairs of groups that training may join.
TRAINED_PAIRS = (
    ("organise", "edits"),
    ("organise", "logs"),
    ("organise", "tables"),
    ("organise", "archives"),
    ("organise", "modes"),
    ("organise", "reports"),
    ("edits", "logs"),
    ("edits", "tables"),
    ("edits", "reports"),
    ("logs", "tables"),
    ("logs", "reports"),
    ("tables", "reports"),
    ("archives", "reports"),
    ("modes", "reports"),
)

UNPACKING = (archives.unpack, archives.take_member)
SETTING_MODES = (modes.set_mode, modes.set_mode_of_kind)

FAMILIES: dict[str, Family] = {
    "organise": Family(
        ("Tidy up this folder.", "Put the files here in order.", "Clean up here."), ((organise.ATOMS,),)
    ),
    "edit": Family(
        ("Edit the texts here.", "Make these changes to the files.", "Correct the files."), ((edits.ATOMS,),)
    ),
    "logs": Family(("Look into the logs.", "Report on the logs here.", "Sort out the logs."), ((logs.ATOMS,),)),
    "tables": Family(
        ("Work on the tables.", "Evaluate the tables here.", "Answer from the tables."), ((tables.ATOMS,),)
    ),
    "archive": Family(("See to the archives.", "Pack and unpack.", "Handle the archives here."), ((archives.ATOMS,),)),
    "permissions": Family(("Put the permissions right.", "Fix the file modes.", "Set permissions."), ((modes.ATOMS,),)),
    "report": Family(
        ("Report on the files here.", "Write these reports.", "Take stock of the files."), ((reports.ATOMS,),)
    ),
    "trail": Family(
        ("Follow a trail of files.", "Go along a trail.", "Read from file to file."),
        ((organise.SINGLE, reports.ATOMS),),
        kind="trail",
    ),
    "queue": Family(
        ("Work through a list of jobs.", "Do the jobs of a list.", "There are jobs to do."),
        ((organise.SINGLE, edits.SINGLE), (organise.SINGLE, modes.SINGLE), (organise.SINGLE, archives.SINGLE)),
        kind="queue",
    ),
    "mixed": Family(
        ("Do all of this.", "Work in this folder.", "Please do the following."),
        tuple((GROUPS[a], GROUPS[b]) for a, b in TRAINED_PAIRS),
    ),
    # Never trained on:
    "release": Family(
        ("Prepare the release.", "Make this ready to ship."),
        ((UNPACKING, edits.ATOMS, SETTING_MODES, archives.ATOMS),),
    ),
    "audit": Family(
        ("Audit this folder.", "Collect what the auditors need."),
        ((logs.ATOMS, modes.ATOMS, tables.ATOMS),),
    ),
}
HELD_OUT = frozenset({"release", "audit"})
