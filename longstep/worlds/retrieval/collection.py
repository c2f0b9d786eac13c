"""A document collection made from a seed: entities with made-up names, facts between them, one short document each.

Each fact of a relation stands in its subject's document only; other documents may mention the names, share a word of
them, or hold an outdated statement of a relation that changed hands.
"""

import functools
import random
import re
from dataclasses import dataclass, field

from longstep.worlds.base import Split
from longstep.worlds.retrieval.schema import ALIASES, DATED, FILLERS, KINDS, LISTINGS, RELATIONS, Forms, Relation
from longstep.worlds.retrieval.words import Words


@dataclass
class Entity:
    kind: str
    title: str
    path: str
    alias: str | None = None
    sentences: list[str] = field(default_factory=list)

    def document(self) -> str:
        return f"# {self.title}\n\n" + "\n".join(self.sentences) + "\n"


@dataclass
class Collection:
    """Facts are keyed by places: the subject's in `entities`, the relation's in `RELATIONS`, `DATED` or `LISTINGS`."""

    split: Split
    entities: list[Entity] = field(default_factory=list)
    of_kind: dict[str, list[int]] = field(default_factory=dict)
    facts: dict[tuple[int, int], int] = field(default_factory=dict)  # an entity's place, or the number itself
    dated: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)  # old, present, year
    listings: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)

    def documents(self) -> dict[str, str]:
        return {entity.path: entity.document() for entity in self.entities}

    def value(self, subject: int, relation: int) -> str:
        """The object as text: a title or a number."""
        fact = self.facts[subject, relation]
        return self.entities[fact].title if isinstance(RELATIONS[relation].object, str) else str(fact)


@functools.lru_cache(maxsize=16)
def make_collection(split: Split, seed: int) -> Collection:
    """The collection of this seed, the same for ever; 200 to 400 documents."""
    rng = random.Random(f"retrieval collection {split} {seed}")
    out = Collection(split)
    _name_entities(out, rng)
    _draw_facts(out, rng)
    _write_documents(out, rng)
    return out


def _name_entities(out: Collection, rng: random.Random) -> None:
    words = Words(out.split, rng)
    scale = rng.uniform(0.6, 1.0)
    drawn: list[str] = []
    paths: set[str] = set()
    for kind, spec in KINDS.items():
        titles: set[str] = set()
        for _ in range(round(spec.count * scale)):
            while True:
                chance = rng.random()
                if drawn and chance < 0.15 and kind != "town":
                    word = rng.choice(drawn)  # the same word as in another name: Varnol Bridge, Varnol Tower
                else:
                    word = words.new(like=rng.choice(drawn) if drawn and chance < 0.3 else None)
                title = spec.names.pick(out.split, rng).format(w=word, v=words.new() if kind == "person" else "")
                if title not in titles:
                    break
            titles.add(title)
            if kind != "town":
                drawn.append(word)
            path = _fresh_path(word, paths, rng)
            alias = None
            if kind in ("bridge", "company", "ship", "product", "tower") and rng.random() < 0.3:
                alias = title.replace(word, words.new())
            out.of_kind.setdefault(kind, []).append(len(out.entities))
            out.entities.append(Entity(kind, title, path, alias))
    for subject, entity in enumerate(out.entities):
        for r, listing in enumerate(LISTINGS):
            if listing.subject == entity.kind:
                num_items = rng.randint(3, 5)
                items = [f"{words.new()} {words.new()}" if listing.people else words.new() for _ in range(num_items)]
                out.listings[subject, r] = tuple(items)


def _fresh_path(word: str, paths: set[str], rng: random.Random) -> str:
    """The number keeps a path from being guessed from the name."""
    while True:
        path = f"docs/{word.lower()}-{rng.randint(10, 99)}.md"
        if path not in paths:
            paths.add(path)
            return path


def _draw_facts(out: Collection, rng: random.Random) -> None:
    for r, relation in enumerate(RELATIONS):
        if isinstance(relation.object, str):
            objects = out.of_kind[relation.object]
            if relation.reverse is not None:  # mostly one subject for each object, so that it can be asked for
                objects = rng.sample(objects, len(objects))
            for n, subject in enumerate(out.of_kind[relation.subject]):
                fact = objects[n % len(objects)] if relation.reverse is not None else rng.choice(objects)
                out.facts[subject, r] = fact
        else:
            for subject in out.of_kind[relation.subject]:
                out.facts[subject, r] = rng.randint(*relation.object)
    for r, dated in enumerate(DATED):
        for subject in out.of_kind[dated.subject]:
            old, new = rng.sample([o for o in out.of_kind[dated.object] if o != subject], 2)
            out.dated[subject, r] = (old, new, rng.randint(1900, 1989))


def _write_documents(out: Collection, rng: random.Random) -> None:
    split = out.split
    towns = out.of_kind["town"]
    facts_of: dict[int, list[tuple[int, Relation]]] = {}
    for subject, r in out.facts:
        facts_of.setdefault(subject, []).append((r, RELATIONS[r]))
    for subject, entity in enumerate(out.entities):
        blocks = [[_say(out, subject, relation.say, rng, o=out.value(subject, r))] for r, relation in facts_of[subject]]
        for r, dated in enumerate(DATED):
            if dated.subject == entity.kind:
                old, new, year = out.dated[subject, r]
                said = _say(
                    out, subject, dated.say, rng, o=out.entities[new].title, old=out.entities[old].title, y=year
                )
                blocks.append(said.split("|"))
        for r, listing in enumerate(LISTINGS):
            if listing.subject == entity.kind:
                *most, last = out.listings[subject, r]
                blocks.append([_say(out, subject, listing.say, rng, items=f"{', '.join(most)} and {last}")])
        if rng.random() < 0.6:
            blocks.append([_say(out, subject, FILLERS, rng, t=out.entities[rng.choice(towns)].title)])
        if entity.alias is not None:
            blocks.append([_say(out, subject, ALIASES, rng, a=entity.alias)])
        rng.shuffle(blocks)
        entity.sentences.append(KINDS[entity.kind].intro.pick(split, rng).format(S=entity.title))
        entity.sentences += [sentence for block in blocks for sentence in block]
    for (subject, r), (old, _, year) in out.dated.items():
        if rng.random() < 0.5:  # the former owner still boasts of it
            past = _say(out, old, DATED[r].past, rng, x=out.entities[subject].title, y=rng.randint(year - 40, year - 5))
            sentences = out.entities[old].sentences
            if len(sentences) < 9:
                sentences.insert(rng.randint(1, len(sentences)), past)


def _say(out: Collection, subject: int, forms: Forms, rng: random.Random, **values: str | int) -> str:
    """One statement about the subject, by its name or as "it"; two sentences of one pair are split at "|"."""
    entity = out.entities[subject]
    named = entity.kind == "person" or rng.random() < 0.3
    said = forms.pick(out.split, rng).format(
        S=entity.title if named else "It", s=entity.title if named else "it", **values
    )
    said = re.sub(r"\b[Tt]he ([a-z ]+) of it\b", r"its \1", said)
    return "|".join(part[0].upper() + part[1:] for part in said.split("|"))
