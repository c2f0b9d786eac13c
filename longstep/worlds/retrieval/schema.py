"""The invented world as data: kinds of entities, their relations, and the sentences and questions that state them.

A relation is stated in the document of its subject and nowhere else. `label` is its one canonical name ("the builder of
X"), which experts think in; documents and questions say it in several ways. Each list of ways has a part that both
splits use and a part of its own for either, so tests hold wordings that training never saw.

In sentences {S} and {s} are the subject (its name or "it"), {o} the object. In questions {x} is a name or a phrase for
it.
"""

import random
from dataclasses import dataclass

from longstep.worlds.base import Split


@dataclass(frozen=True)
class Forms:
    """Ways to say one thing."""

    shared: tuple[str, ...]
    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()

    def pick(self, split: Split, rng: random.Random) -> str:
        return rng.choice(self.shared + (self.train if split == "train" else self.test))


def ways(shared: str, train: str = "", test: str = "") -> Forms:
    """Ways are set apart by " / "."""
    return Forms(*(tuple(part.split(" / ")) if part else () for part in (shared, train, test)))


@dataclass(frozen=True)
class Kind:
    """`count` is how many a collection of full size holds; `name` has {w} for a made-up word."""

    count: int
    names: Forms
    intro: Forms


@dataclass(frozen=True, kw_only=True)
class Relation:
    """`object` is a kind, or a number range (low, high) in which case `order` may name the (smaller, larger) one."""

    subject: str
    object: str | tuple[int, int]
    label: str
    say: Forms
    np: Forms  # a noun phrase that ends in {x}, so that phrases nest to the right
    ask: Forms
    reverse: Forms | None = None  # asks for the subject, given the object
    order: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Dated:
    """A relation that changed hands: {old} until {y}, {o} since. `say` holds pairs of sentences, split at "|"."""

    subject: str
    object: str
    label: str
    say: Forms
    np: Forms
    ask: Forms
    past: Forms  # a true but outdated statement in the document of the former object: {x} in the year {y}


@dataclass(frozen=True, kw_only=True)
class Listing:
    """An ordered list of names in one document. {n} is an ordinal, {items} the list."""

    subject: str
    label: str
    say: Forms
    ask: Forms
    people: bool = False  # the items are names of people


YEAR = (1701, 1859)  # changes of hand come later: collection.py

KINDS: dict[str, Kind] = {
    "bridge": Kind(30, ways("{w} Bridge", "{w} Viaduct", "{w} Crossing"), ways("{S} is a bridge.")),
    "company": Kind(
        40,
        ways("{w} Works / {w} Foundry", "{w} Mills / {w} Brothers", "{w} Yards / {w} Partners"),
        ways("{S} is a company.", "{S} is a private company.", "{S} is a company of long standing."),
    ),
    "town": Kind(40, ways("{w}"), ways("{S} is a town.", "{S} is a market town.", "{S} is a small town.")),
    "ship": Kind(
        30,
        ways("{w} Star / {w} Gull", "{w} Lark", "{w} Heron"),
        ways("{S} is a ship.", "{S} is a sailing ship.", "{S} is a freight ship."),
    ),
    "institute": Kind(
        25,
        ways("{w} Institute", "{w} College", "{w} Academy"),
        ways("{S} is an institute.", "{S} is an institute for research.", "{S} is an institute of learning."),
    ),
    "river": Kind(25, ways("River {w}"), ways("{S} is a river.", "{S} is a slow river.", "{S} is a wide river.")),
    "lake": Kind(14, ways("Lake {w}"), ways("{S} is a lake.", "{S} is a deep lake.", "{S} is a cold lake.")),
    "mountain": Kind(
        20,
        ways("Mount {w}"),
        ways("{S} is a mountain.", "{S} is a steep mountain.", "{S} is a bare mountain."),
    ),
    "product": Kind(
        30,
        ways("{w} Lamp / {w} Loom", "{w} Pump", "{w} Clock"),
        ways("{S} is a product.", "{S} is a well known product.", "{S} is a product for the home."),
    ),
    "expedition": Kind(
        20,
        ways("{w} Expedition"),
        ways("{S} was an expedition.", "{S} was a long expedition.", "{S} was a bold expedition."),
    ),
    "award": Kind(
        16,
        ways("{w} Prize", "{w} Medal", "{w} Award"),
        ways("{S} is an award.", "{S} is an award for science.", "{S} is an award of honour."),
    ),
    "tower": Kind(
        18,
        ways("{w} Tower", "{w} Lighthouse", "{w} Beacon"),
        ways("{S} is a tower.", "{S} is a stone tower.", "{S} is a brick tower."),
    ),
    "person": Kind(
        45,
        ways("{w} {v}"),
        ways("{S} is an engineer. / {S} is a writer.", "{S} is a builder.", "{S} is a teacher."),
    ),
}


def _home(subject: str) -> Relation:
    return Relation(
        subject=subject,
        object="town",
        label="home town",
        say=ways(
            "{S} is based in {o}. / The home town of {s} is {o}.",
            "{S} has its seat in {o}.",
            "{S} has its home in {o}.",
        ),
        np=ways(
            "the home town of {x} / the town that is home to {x}", "the seat of {x}", "the town that is the home of {x}"
        ),
        ask=ways(
            "In which town is {x} based? / Where is {x} based?",
            "Which town is home to {x}?",
            "Which town is the home of {x}?",
        ),
    )


def _founded(subject: str) -> Relation:
    return Relation(
        subject=subject,
        object=YEAR,
        label="founding year",
        say=ways(
            "{S} was founded in {o}. / The founding year of {s} is {o}.",
            "The year {o} saw the founding of {s}.",
            "The founding of {s} was in {o}.",
        ),
        np=ways("the founding year of {x}"),
        ask=ways(
            "In which year was {x} founded? / When was {x} founded?",
            "What is the year of the founding of {x}?",
            "In what year was the founding of {x}?",
        ),
        order=("older", "younger"),
    )


def _founder(subject: str) -> Relation:
    return Relation(
        subject=subject,
        object="person",
        label="founder",
        say=ways(
            "{S} was founded by {o}. / The founder of {s} was {o}.",
            "{o} founded {s}.",
            "The founding of {s} was the work of {o}.",
        ),
        np=ways("the founder of {x}", "the person who founded {x}", "the one who founded {x}"),
        ask=ways(
            "Who founded {x}? / Who was the founder of {x}?", "By whom was {x} founded?", "Which person founded {x}?"
        ),
        reverse=ways(
            f"Which {subject} was founded by {{o}}? / Which {subject} did {{o}} found?",
            f"{{o}} founded which {subject}?",
            f"Name the {subject} founded by {{o}}.",
        ),
    )


def _year(subject: str, noun: str, verb: str, order: tuple[str, str] = ("older", "younger")) -> Relation:
    return Relation(
        subject=subject,
        object=YEAR,
        label=f"{noun} year",
        say=ways(
            f"{{S}} was {verb} in {{o}}. / The {noun} year of {{s}} is {{o}}.",
            f"In {{o}} {{s}} was {verb}.",
            f"{{S}} was {verb} in the year {{o}}.",
        ),
        np=ways(f"the {noun} year of {{x}}"),
        ask=ways(
            f"In which year was {{x}} {verb}? / When was {{x}} {verb}?",
            f"What is the {noun} year of {{x}}?",
            f"In what year was {{x}} {verb}?",
        ),
        order=order,
    )


def _size(
    subject: str, label: str, adjective: str, noun: str, unit: str, bounds: tuple[int, int], order: tuple[str, str]
) -> Relation:
    return Relation(
        subject=subject,
        object=bounds,
        label=label,
        say=ways(
            f"{{S}} is {{o}} {unit} {adjective}. / The {noun} of {{s}} is {{o}} {unit}.",
            f"{{S}} has a {noun} of {{o}} {unit}.",
            f"At {{o}} {unit}, {{s}} is known for its {noun}.",
        ),
        np=ways(f"the {label} of {{x}}"),
        ask=ways(
            f"How {adjective} is {{x}} in {unit}? / What is the {label} of {{x}}?",
            f"How many {unit} {adjective} is {{x}}?",
            f"What is the {noun} of {{x}} in {unit}?",
        ),
        order=order,
    )


def _builder(subject: str) -> Relation:
    return Relation(
        subject=subject,
        object="company",
        label="builder",
        say=ways(
            "{S} was built by {o}. / The builder of {s} was {o}.",
            "{o} built {s}.",
            "The building of {s} was the work of {o}.",
        ),
        np=ways("the builder of {x} / the company that built {x}", "the maker of {x}", "the firm that built {x}"),
        ask=ways(
            "Which company built {x}? / Who built {x}?",
            "By which company was {x} built?",
            "What is the name of the builder of {x}?",
        ),
        reverse=ways(
            f"Which {subject} was built by {{o}}? / Which {subject} did {{o}} build?",
            f"{{o}} built which {subject}?",
            f"Name the {subject} built by {{o}}.",
        ),
    )


def _designer(subject: str) -> Relation:
    return Relation(
        subject=subject,
        object="person",
        label="designer",
        say=ways(
            "{S} was designed by {o}. / The designer of {s} was {o}.",
            "{o} designed {s}.",
            "The design of {s} was the work of {o}.",
        ),
        np=ways(
            "the designer of {x} / the person who designed {x}",
            "the author of the design of {x}",
            "the one who designed {x}",
        ),
        ask=ways(
            "Who designed {x}? / Who was the designer of {x}?",
            "By whom was {x} designed?",
            "Which person designed {x}?",
        ),
        reverse=ways(
            f"Which {subject} was designed by {{o}}? / Which {subject} did {{o}} design?",
            f"{{o}} designed which {subject}?",
            f"Name the {subject} designed by {{o}}.",
        ),
    )


def _stands(subject: str) -> Relation:
    return Relation(
        subject=subject,
        object="town",
        label="town",
        say=ways(
            "{S} stands in {o}. / The town of {s} is {o}.", "{S} can be found in {o}.", "{S} is in the town of {o}."
        ),
        np=ways("the town of {x}", "the town that holds {x}", "the town around {x}"),
        ask=ways(
            "In which town is {x}? / In which town does {x} stand?", "Which town holds {x}?", "In what town is {x}?"
        ),
    )


RELATIONS: tuple[Relation, ...] = (
    _builder("bridge"),
    _stands("bridge"),
    _year("bridge", "opening", "opened"),
    _size("bridge", "length in metres", "long", "length", "metres", (120, 980), ("shorter", "longer")),
    Relation(
        subject="bridge",
        object="river",
        label="river",
        say=ways("{S} crosses {o}. / The river of {s} is {o}.", "{S} spans {o}.", "{S} goes across {o}."),
        np=ways("the river under {x}", "the river that runs under {x}", "the river below {x}"),
        ask=ways(
            "Which river does {x} cross? / Which river runs under {x}?",
            "Over which river does {x} go?",
            "Which river is under {x}?",
        ),
    ),
    _home("company"),
    _founded("company"),
    _founder("company"),
    Relation(
        subject="town",
        object="river",
        label="river",
        say=ways("{S} lies on {o}. / The river of {s} is {o}.", "{S} was built beside {o}.", "{S} stands on {o}."),
        np=ways(
            "the river of {x} / the river that runs through {x}", "the river beside {x}", "the river that passes {x}"
        ),
        ask=ways(
            "On which river does {x} lie? / Which river runs through {x}?",
            "Which river is beside {x}?",
            "Which river passes {x}?",
        ),
    ),
    Relation(
        subject="town",
        object=(1200, 9800),
        label="population",
        say=ways(
            "{S} has {o} inhabitants. / The population of {s} is {o}.",
            "{S} has a population of {o}.",
            "{S} is home to a population of {o}.",
        ),
        np=ways("the population of {x}"),
        ask=ways(
            "What is the population of {x}? / How many inhabitants has {x}?",
            "How many people live in {x}?",
            "How large is the population of {x}?",
        ),
        order=("smaller", "larger"),
    ),
    _builder("ship"),
    _year("ship", "launch", "launched"),
    _size("ship", "length in metres", "long", "length", "metres", (31, 98), ("shorter", "longer")),
    _home("institute"),
    _founded("institute"),
    _founder("institute"),
    _size("river", "length in kilometres", "long", "length", "kilometres", (110, 980), ("shorter", "longer")),
    Relation(
        subject="river",
        object="lake",
        label="lake",
        say=ways("{S} flows into {o}. / The lake of {s} is {o}.", "{S} ends in {o}.", "{S} runs into {o}."),
        np=ways("the lake of {x} / the lake at the end of {x}", "the lake fed by {x}", "the lake that receives {x}"),
        ask=ways(
            "Into which lake does {x} flow? / Which lake does {x} flow into?",
            "In which lake does {x} end?",
            "Into which lake does {x} run?",
        ),
    ),
    Relation(
        subject="river",
        object="mountain",
        label="source",
        say=ways(
            "{S} rises on {o}. / The source of {s} is on {o}.", "{S} springs from {o}.", "{S} has its source on {o}."
        ),
        np=ways(
            "the mountain at the source of {x}", "the mountain that is the source of {x}", "the source mountain of {x}"
        ),
        ask=ways(
            "On which mountain does {x} rise? / On which mountain is the source of {x}?",
            "From which mountain does {x} spring?",
            "Which mountain holds the source of {x}?",
        ),
    ),
    _size("lake", "depth in metres", "deep", "depth", "metres", (21, 98), ("shallower", "deeper")),
    Relation(
        subject="lake",
        object="expedition",
        label="surveyor",
        say=ways(
            "{S} was first mapped by {o}. / The first survey of {s} was made by {o}.",
            "{o} first mapped {s}.",
            "The first map of {s} was made by {o}.",
        ),
        np=ways("the expedition that first mapped {x}", "the surveyor of {x}", "the expedition that surveyed {x}"),
        ask=ways(
            "Which expedition first mapped {x}? / Which expedition made the first survey of {x}?",
            "By which expedition was {x} first mapped?",
            "Which expedition made the first map of {x}?",
        ),
    ),
    _size("mountain", "height in metres", "high", "height", "metres", (1020, 4980), ("lower", "higher")),
    Relation(
        subject="mountain",
        object="person",
        label="first climber",
        say=ways(
            "{S} was first climbed by {o}. / The first climber of {s} was {o}.",
            "{o} was the first to climb {s}.",
            "{o} reached the top of {s} first.",
        ),
        np=ways("the first climber of {x}", "the person who first climbed {x}", "the one who first climbed {x}"),
        ask=ways(
            "Who first climbed {x}? / Who was the first climber of {x}?",
            "By whom was {x} first climbed?",
            "Which person first climbed {x}?",
        ),
        reverse=ways(
            "Which mountain was first climbed by {o}? / Which mountain did {o} climb first?",
            "{o} was the first climber of which mountain?",
            "Name the mountain first climbed by {o}.",
        ),
    ),
    Relation(
        subject="product",
        object="company",
        label="maker",
        say=ways(
            "{S} is made by {o}. / The maker of {s} is {o}.", "{o} makes {s}.", "The making of {s} is the work of {o}."
        ),
        np=ways("the maker of {x} / the company that makes {x}", "the company behind {x}", "the firm that makes {x}"),
        ask=ways(
            "Which company makes {x}? / Who makes {x}?",
            "By which company is {x} made?",
            "What is the name of the maker of {x}?",
        ),
        reverse=ways(
            "Which product is made by {o}? / Which product does {o} make?",
            "{o} makes which product?",
            "Name the product made by {o}.",
        ),
    ),
    _designer("product"),
    _year("product", "release", "released"),
    Relation(
        subject="expedition",
        object="person",
        label="leader",
        say=ways(
            "{S} was led by {o}. / The leader of {s} was {o}.", "{o} led {s}.", "At the head of {s} was its leader {o}."
        ),
        np=ways("the leader of {x} / the person who led {x}", "the head of {x}", "the one who led {x}"),
        ask=ways("Who led {x}? / Who was the leader of {x}?", "By whom was {x} led?", "Which person led {x}?"),
        reverse=ways(
            "Which expedition was led by {o}? / Which expedition did {o} lead?",
            "{o} led which expedition?",
            "Name the expedition led by {o}.",
        ),
    ),
    Relation(
        subject="expedition",
        object="ship",
        label="ship",
        say=ways(
            "{S} sailed on {o}. / The ship of {s} was {o}.", "{S} went out on {o}.", "{S} travelled on the ship {o}."
        ),
        np=ways("the ship of {x} / the ship that carried {x}", "the ship used by {x}", "the vessel of {x}"),
        ask=ways(
            "On which ship did {x} sail? / Which ship carried {x}?",
            "Which ship was used by {x}?",
            "On which ship did {x} travel?",
        ),
        reverse=ways(
            "Which expedition sailed on {o}? / Which expedition was carried by {o}?",
            "{o} carried which expedition?",
            "Name the expedition that sailed on {o}.",
        ),
    ),
    _year("expedition", "start", "started", ("earlier", "later")),
    Relation(
        subject="award",
        object="institute",
        label="giver",
        say=ways(
            "{S} is given by {o}. / The giver of {s} is {o}.",
            "{o} gives {s} each year.",
            "{S} is given each year by {o}.",
        ),
        np=ways(
            "the giver of {x} / the institute that gives {x}", "the institute behind {x}", "the body that gives {x}"
        ),
        ask=ways(
            "Which institute gives {x}? / Who gives {x}?",
            "By which institute is {x} given?",
            "What is the name of the giver of {x}?",
        ),
        reverse=ways(
            "Which award is given by {o}? / Which award does {o} give?",
            "{o} gives which award?",
            "Name the award given by {o}.",
        ),
    ),
    _year("award", "first", "first given"),
    _designer("tower"),
    _stands("tower"),
    _size("tower", "height in metres", "high", "height", "metres", (21, 98), ("lower", "higher")),
    Relation(
        subject="person",
        object="town",
        label="birthplace",
        say=ways(
            "{S} was born in {o}. / The birthplace of {s} is {o}.",
            "{S} comes from {o}.",
            "{S} was born in the town of {o}.",
        ),
        np=ways("the birthplace of {x}", "the town of birth of {x}", "the native town of {x}"),
        ask=ways(
            "In which town was {x} born? / Where was {x} born?",
            "What is the birthplace of {x}?",
            "In what town was {x} born?",
        ),
    ),
    Relation(
        subject="person",
        object="institute",
        label="school",
        say=ways(
            "{S} studied at {o}. / The school of {s} was {o}.",
            "{S} was a student of {o}.",
            "{S} went to school at {o}.",
        ),
        np=ways(
            "the school of {x} / the institute that taught {x}",
            "the institute attended by {x}",
            "the institute that trained {x}",
        ),
        ask=ways(
            "At which institute did {x} study? / Where did {x} study?",
            "Which institute taught {x}?",
            "At what institute did {x} study?",
        ),
    ),
)

DATED: tuple[Dated, ...] = (
    Dated(
        subject="company",
        object="company",
        label="present owner",
        say=ways(
            "Until {y} {s} belonged to {old}.|Since {y} {s} has belonged to {o}."
            " / {S} has belonged to {o} since {y}.|Before {y} its owner was {old}.",
            "Its owner was {old} until {y}.|Then {o} bought {s}.",
            "{S} was owned by {old} until {y}.|{o} has owned {s} since then.",
        ),
        np=ways(
            "the present owner of {x} / the current owner of {x}",
            "the company that now owns {x}",
            "the company that today owns {x}",
        ),
        ask=ways(
            "Who owns {x} now? / Who is the present owner of {x}?",
            "Which company owns {x} today?",
            "Which company is now the owner of {x}?",
        ),
        past=ways("In {y} {s} owned {x}.", "{S} was the owner of {x} in {y}.", "In {y} {x} belonged to {s}."),
    ),
    Dated(
        subject="institute",
        object="person",
        label="present director",
        say=ways(
            "Until {y} the director of {s} was {old}.|Since {y} the director of {s} has been {o}."
            " / {S} has been led by its director {o} since {y}.|Before {y} its director was {old}.",
            "Its director was {old} until {y}.|Then {o} took over.",
            "{old} was director of {s} until {y}.|{o} has been director since then.",
        ),
        np=ways(
            "the present director of {x} / the current director of {x}",
            "the person who now directs {x}",
            "the one who today directs {x}",
        ),
        ask=ways(
            "Who is the director of {x} now? / Who is the present director of {x}?",
            "Who directs {x} today?",
            "Which person is now the director of {x}?",
        ),
        past=ways("In {y} {s} was director of {x}.", "{S} directed {x} in {y}.", "In {y} {x} had {s} as director."),
    ),
    Dated(
        subject="ship",
        object="town",
        label="present home port",
        say=ways(
            "Until {y} the home port of {s} was {old}.|Since {y} the home port of {s} has been {o}."
            " / {S} has had its home port in {o} since {y}.|Before {y} its home port was {old}.",
            "Its home port was {old} until {y}.|Then {s} moved to {o}.",
            "{old} was the home port of {s} until {y}.|{o} has been its home port since then.",
        ),
        np=ways(
            "the present home port of {x} / the current home port of {x}",
            "the town that is now home port to {x}",
            "the town that is today home port to {x}",
        ),
        ask=ways(
            "Where is the home port of {x} now? / What is the present home port of {x}?",
            "Which town is the home port of {x} today?",
            "Which town is now the home port of {x}?",
        ),
        past=ways(
            "In {y} {s} was home port to {x}.",
            "{S} was the home port of {x} in {y}.",
            "In {y} {x} had its home port in {s}.",
        ),
    ),
)

LISTINGS: tuple[Listing, ...] = (
    Listing(
        subject="award",
        label="winner",
        people=True,
        say=ways(
            "The winners of {s} in order are {items}.",
            "In order, its winners are {items}.",
            "Its winners, in order, are {items}.",
        ),
        ask=ways(
            "Who was the {n} winner of {x}?", "Which person was the {n} winner of {x}?", "Who is the {n} winner of {x}?"
        ),
    ),
    Listing(
        subject="expedition",
        label="camp",
        say=ways(
            "The camps of {s} in order were {items}.",
            "In order, its camps were {items}.",
            "Its camps, in order, were {items}.",
        ),
        ask=ways(
            "What was the {n} camp of {x}?",
            "What was the name of the {n} camp of {x}?",
            "Which was the {n} camp of {x}?",
        ),
    ),
    Listing(
        subject="tower",
        label="keeper",
        people=True,
        say=ways(
            "The keepers of {s} in order were {items}.",
            "In order, its keepers were {items}.",
            "Its keepers, in order, were {items}.",
        ),
        ask=ways(
            "Who was the {n} keeper of {x}?", "Which person was the {n} keeper of {x}?", "Who is the {n} keeper of {x}?"
        ),
    ),
    Listing(
        subject="lake",
        label="island",
        say=ways(
            "The islands of {s} from north to south are {items}.",
            "From north to south, its islands are {items}.",
            "Its islands, from north to south, are {items}.",
        ),
        ask=ways(
            "What is the {n} island of {x} from the north?",
            "From the north, what is the {n} island of {x}?",
            "Which is the {n} island of {x} from the north?",
        ),
    ),
)
ORDINALS = ("first", "second", "third", "fourth", "fifth")

FILLERS = ways(
    "Visitors often ask about {s} in {t}. / A small museum about {s} is open in summer."
    " / A guide to {s} was printed in {t}.",
    "A model of {s} is on show in {t}. / Old letters about {s} were found in {t}.",
    "A drawing of {s} hangs in the hall of {t}. / Songs about {s} are sung in {t}.",
)
ALIASES = ways("{S} is also known as {a}.", "Some call {s} {a}.", "{S} has a second name, {a}.")
