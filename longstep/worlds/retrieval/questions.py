"""Questions over a collection, by family. Each comes with what must be found on the way to its answer.

A question is regular underneath: a list of needs, one document each, and a last conclusion. What makes it hard is to
see the needs in the wording, to keep the place in the chain, and to pick the right line and document.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from longstep.worlds.retrieval.collection import Collection
from longstep.worlds.retrieval.schema import DATED, LISTINGS, ORDINALS, RELATIONS, Dated, Relation, ways


@dataclass(frozen=True, kw_only=True)
class Need:
    """One fact to find: `what` it is in canonical words, `query` finds its document, `found` states it once read.

    `hides` is a name by which the question calls the subject and which only its document explains; `value` is the
    text in the document that the fact comes from.
    """

    what: str
    query: str
    path: str
    title: str
    value: str
    found: str
    hides: str | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    text: str
    plan: tuple[str, ...]
    needs: tuple[Need, ...]
    conclusion: str  # a last thought between the facts and the answer; may be ""
    answer: str
    source: str  # the one document that states the answer


FIND = ways("What is {x}? / Name {x}.", "Find {x}.", "Say what {x} is.")
FOLLOW = ways(
    "Start at {x}. Take its {first}{then}. What is it? / Begin with {x}. Find its {first}{then}.",
    "From {x} go to its {first}{then}. Where do you end?",
    "Begin at {x} and go to its {first}{then}. What do you find?",
)
COMPARE = ways(
    "What is the {label} of the {which} of {a} and {b}? / Take the {which} of {a} and {b}. What is its {label}?",
    "Compare {a} and {b}. What is the {label} of the {which} one?",
    "Of {a} and {b}, find the {which} one. What is its {label}?",
)


def make_question(collection: Collection, family: str, rng: random.Random) -> Question:
    return FAMILIES[family](collection, rng)


# ------------------------------------------------------------------------------------------------------------ chains


def _need(c: Collection, subject: int, r: int, name: str | None = None) -> Need:
    """The value of relation `r` of `subject`, which the question may call `name`."""
    entity, label, value = c.entities[subject], RELATIONS[r].label, c.value(subject, r)
    return Need(
        what=f"the {label} of {name or entity.title}",
        query=name or entity.title,
        path=entity.path,
        title=entity.title,
        value=value,
        found=f"The {label} of {entity.title} is {value}.",
        hides=name,
    )


def _dated_need(c: Collection, subject: int, r: int) -> Need:
    entity, label = c.entities[subject], DATED[r].label
    old, new, year = c.dated[subject, r]
    former = c.entities[old].title
    return Need(
        what=f"the {label} of {entity.title}",
        query=entity.title,
        path=entity.path,
        title=entity.title,
        value=c.entities[new].title,
        found=f"Until {year} it was {former}. The {label} of {entity.title} is {c.entities[new].title}.",
    )


def _walk(c: Collection, start: int, num_hops: int, rng: random.Random) -> list[tuple[int, int]] | None:
    """A chain of (subject, relation), all subjects and relations different; None if it ran into a dead end."""
    chain: list[tuple[int, int]] = []
    subject, seen = start, {start}
    for hop in range(num_hops):
        kind = c.entities[subject].kind
        last = hop == num_hops - 1
        used = {r for _, r in chain}
        options = [
            r
            for r, relation in enumerate(RELATIONS)
            if relation.subject == kind and r not in used and (last or isinstance(relation.object, str))
        ]
        if not options:
            return None
        r = rng.choice(options)
        chain.append((subject, r))
        if isinstance(RELATIONS[r].object, str):
            subject = c.facts[subject, r]
            if subject in seen:
                return None
            seen.add(subject)
    return chain


def _chain(num_hops: int) -> Callable[[Collection, random.Random], Question]:
    def make(c: Collection, rng: random.Random) -> Question:
        while True:
            start = rng.randrange(len(c.entities))
            chain = _walk(c, start, num_hops, rng)
            if chain is not None:
                break
        entity = c.entities[start]
        alias = entity.alias if rng.random() < 0.5 else None
        needs = [_need(c, subject, r, alias if hop == 0 else None) for hop, (subject, r) in enumerate(chain)]
        relations = [RELATIONS[r] for _, r in chain]
        if num_hops > 1 and rng.random() < 0.3:
            labels = [relation.label for relation in relations]
            then = "".join(f", then the {label} of that" for label in labels[1:])
            text = FOLLOW.pick(c.split, rng).format(x=alias or entity.title, first=labels[0], then=then)
        else:
            text = _nested(c, alias or entity.title, relations, rng)
        return _chain_question(text, [relation.label for relation in relations], needs)

    return make


def _nested(c: Collection, name: str, relations: list[Relation], rng: random.Random) -> str:
    phrase = name
    for relation in relations[:-1]:
        phrase = relation.np.pick(c.split, rng).format(x=phrase)
    return _ask(c, relations[-1], phrase, rng)


def _ask(c: Collection, relation: Relation | Dated, phrase: str, rng: random.Random) -> str:
    if rng.random() < 0.25:
        return FIND.pick(c.split, rng).format(x=relation.np.pick(c.split, rng).format(x=phrase))
    return relation.ask.pick(c.split, rng).format(x=phrase)


def _chain_question(text: str, labels: list[str], needs: list[Need]) -> Question:
    plan = (needs[0].what, *(f"the {label} of that" for label in labels[1:]))
    return Question(
        text=text, plan=plan, needs=tuple(needs), conclusion="", answer=needs[-1].value, source=needs[-1].path
    )


def _current(c: Collection, rng: random.Random) -> Question:
    """An outdated statement stands beside the true one, and often in another document too."""
    subject, r = rng.choice(list(c.dated))
    text = _ask(c, DATED[r], c.entities[subject].title, rng)
    return _chain_question(text, [DATED[r].label], [_dated_need(c, subject, r)])


def _current_hop(c: Collection, rng: random.Random) -> Question:
    """The present holder is only the first of two hops."""
    while True:
        subject, d = rng.choice(list(c.dated))
        holder = c.dated[subject, d][1]
        chain = _walk(c, holder, 1, rng)
        assert chain is not None, "every kind has a relation"
        r = chain[0][1]
        if c.facts[holder, r] != subject or not isinstance(RELATIONS[r].object, str):
            break
    phrase = DATED[d].np.pick(c.split, rng).format(x=c.entities[subject].title)
    text = _ask(c, RELATIONS[r], phrase, rng)
    needs = [_dated_need(c, subject, d), _need(c, holder, r)]
    return _chain_question(text, [DATED[d].label, RELATIONS[r].label], needs)


# ------------------------------------------------------------------------------------------------------------ others


def _reverse(c: Collection, rng: random.Random) -> Question:
    """The question names the object; only the unknown subject's document holds the fact."""
    while True:
        r = rng.choice([r for r, relation in enumerate(RELATIONS) if relation.reverse is not None])
        relation = RELATIONS[r]
        assert relation.reverse is not None
        subject = rng.choice(c.of_kind[relation.subject])
        object_ = c.facts[subject, r]
        if sum(c.facts[other, r] == object_ for other in c.of_kind[relation.subject]) == 1:
            break
    entity, name = c.entities[subject], c.entities[object_].title
    what = f"the {relation.subject} whose {relation.label} is {name}"
    need = Need(
        what=what,
        query=f"{relation.subject} {name}",
        path=entity.path,
        title=entity.title,
        value=name,
        found=f"The {relation.label} of {entity.title} is {name}.",
    )
    return Question(
        text=relation.reverse.pick(c.split, rng).format(o=name),
        plan=(what,),
        needs=(need,),
        conclusion="",
        answer=entity.title,
        source=entity.path,
    )


def _list(c: Collection, rng: random.Random) -> Question:
    """The n-th of a list of names."""
    subject, r = rng.choice(list(c.listings))
    items, listing, entity = c.listings[subject, r], LISTINGS[r], c.entities[subject]
    n = rng.randrange(len(items))
    what = f"the {ORDINALS[n]} {listing.label} of {entity.title}"
    counted = ", ".join(f"{place} {item}" for place, item in enumerate(items[: n + 1], start=1))
    need = Need(
        what=what,
        query=entity.title,
        path=entity.path,
        title=entity.title,
        value=items[n],
        found=f"{counted}. So {what} is {items[n]}.",
    )
    text = listing.ask.pick(c.split, rng).format(n=ORDINALS[n], x=entity.title)
    return Question(text=text, plan=(what,), needs=(need,), conclusion="", answer=items[n], source=entity.path)


def _compare(c: Collection, rng: random.Random) -> Question:
    """Which of two is the longer, older, ...: asked for its number, so that naming one at random is no answer."""
    while True:
        r = rng.choice([r for r, relation in enumerate(RELATIONS) if relation.order is not None])
        relation = RELATIONS[r]
        assert relation.order is not None
        assert not isinstance(relation.object, str), "what has an order is a number"
        pair = rng.sample(c.of_kind[relation.subject], 2)
        a, b = (c.facts[subject, r] for subject in pair)
        low, high = relation.object
        if abs(a - b) * 20 >= high - low:  # a difference that shows in the leading digits
            break
    which = rng.randrange(2)
    small, large = (0, 1) if a < b else (1, 0)
    winner = (small, large)[which]
    needs = tuple(_need(c, subject, r) for subject in pair)
    values = (a, b)
    return Question(
        text=COMPARE.pick(c.split, rng).format(
            label=relation.label, which=relation.order[which], a=needs[0].title, b=needs[1].title
        ),
        plan=(needs[0].what, needs[1].what, f"the {relation.order[which]} one"),
        needs=needs,
        conclusion=f"{values[small]} is less than {values[large]}. "
        f"The {relation.order[which]} one is {needs[winner].title}: {values[winner]}.",
        answer=str(values[winner]),
        source=needs[winner].path,
    )


FAMILIES: dict[str, Callable[[Collection, random.Random], Question]] = {
    "hop1": _chain(1),
    "hop2": _chain(2),
    "hop3": _chain(3),
    "compare": _compare,
    "current": _current,
    "reverse": _reverse,
    "list": _list,
    "hop4": _chain(4),
    "current_hop": _current_hop,
}
# Fixed before training: a chain longer than any trained one, and a chain that starts at what changed hands.
HELD_OUT = frozenset({"hop4", "current_hop"})
