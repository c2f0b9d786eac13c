"""Names for folders, files, services and words, in two sides that never meet.

Every plain word belongs to one side by its checksum, and so does every made-up name; compound names join words of one
side. A name seen in training is therefore never drawn for a test, and the space is large (millions), so that a model
has to copy names instead of remembering them.
"""

import random
import zlib

from longstep.worlds.base import Split


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WORDS = _split(
    """
    acorn adobe agate alder almond amber anchor anvil apple apricot arbor arch arrow ash aspen atlas attic
    autumn badge badger bakery balcony bamboo banjo banner barley barn basil basin basket bay beacon beaver
    beech bell bench berry birch bishop blanket blossom boat bobbin bonnet border bottle boulder bowl branch
    brass bread breeze brick bridge bronze brook broom bucket buckle buffalo button cabin cable cactus camel
    candle canoe canvas canyon cape caramel carbon cargo carpet carrot castle cedar cellar chalk chapel cherry
    chess chestnut chimney cider cinder circle cliff clock cloud clover coal cobalt cocoa coffee comet compass
    copper coral cork corn cotton cove crane crater creek cricket crown crystal cup curtain cypress dahlia daisy
    dawn delta denim desert dew diamond dolphin dome donkey dove dragon drum dune dusk eagle earth echo elbow
    elder elm ember emerald engine falcon fable feather fennel fern ferry fiddle field fig finch fjord flame
    flax flint flour flute fog forest forge fossil fountain fox frost galaxy garden garlic garnet gate gazelle
    geyser ginger glacier glass globe goat goose grain granite grape gravel grove guitar gull gully hammer
    hamlet harbor harp harvest hazel heath hedge helm hemlock heron hill hive holly honey horn hornet horse
    igloo indigo inkwell iris iron island ivory ivy jacket jade jaguar jasmine jigsaw juniper kayak kernel
    kettle kiln kite kiwi knot koala lagoon lake lamp lantern larch lark latch laurel lava lavender leaf lemon
    lentil lichen lilac lily lime linen lion lizard lobster locket loom lotus lynx magnet magpie mango mantle
    maple marble marsh meadow melon mesa mill mint mirror moat mole moon moss moth mountain mulberry mushroom
    mustard nectar needle nest nettle nickel noodle nutmeg oak oasis oat ocean olive onion onyx opal orbit
    orchard orchid otter oven owl oyster paddle palm panda panther paper parrot parsley path peach peacock pearl
    pebble pelican pepper pier pigeon pillar pine planet plaster plum pocket pollen pond poplar poppy prairie
    prism puddle pumpkin quarry quartz quill quilt rabbit radish raft rain raisin ranch raven reed reef ribbon
    rice ridge river robin rocket roof rope rose ruby rudder rye saddle saffron sail salmon salt sand sapphire
    satin saturn scarf shell shore silk silver slate snail snow sparrow spice spider spindle spruce squash
    stable star stone stork storm straw stream summit sun swan sycamore table talon tapestry tea temple thicket
    thistle thorn thunder tide tiger timber tin toast tomato topaz torch tower trellis trout trumpet tulip
    tundra tunnel turnip turtle twig umber valley vanilla velvet vine violet violin walnut walrus water wave
    weasel wharf wheat wheel whistle willow window winter wolf wren yarn yarrow yew zebra zenith zephyr zinc
    zinnia
    """
)

_ONSETS = _split("b br c ch d dr f fl g gr h j k kr l m n p pl pr qu r s sk st t tr v w z")
_VOWELS = _split("a e i o u ai ea io ou")
_CODAS = ("", "", "", *_split("l n r s m x th nd"))

SHARED_EXTENSIONS = ("txt", "md", "cfg", "dat")  # plain enough that leaving them out of a split would be unnatural
SIDE_EXTENSIONS: dict[Split, tuple[str, ...]] = {
    "train": ("bak", "tmp", "old", "out", "note", "part", "list"),
    "test": ("orig", "ini", "draft", "cache"),
}


def side(name: str) -> Split:
    """The side to which a word or a made-up name belongs, for ever."""
    return "test" if zlib.crc32(name.encode()) % 4 == 0 else "train"


_WORDS: dict[Split, tuple[str, ...]] = {
    "train": tuple(w for w in WORDS if side(w) == "train"),
    "test": tuple(w for w in WORDS if side(w) == "test"),
}


def word(rng: random.Random, split: Split) -> str:
    return rng.choice(_WORDS[split])


def coined(rng: random.Random, split: Split, num_syllables: int = 2) -> str:
    """A word that nobody has seen: `drelsou`, `plinda`."""
    while True:
        name = "".join(
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + (rng.choice(_CODAS) if i == num_syllables - 1 else "")
            for i in range(num_syllables)
        )
        if len(name) > 3 and side(name) == split:
            return name


def name(rng: random.Random, split: Split) -> str:
    """A name for a file, a folder or a service; no character in it needs quoting in a shell or a regular expression."""
    kind = rng.random()
    if kind < 0.35:
        return f"{word(rng, split)}{rng.choice('-_')}{word(rng, split)}"
    if kind < 0.7:
        return coined(rng, split, rng.choice((2, 2, 3)))
    if kind < 0.85:
        return f"{word(rng, split)}{rng.randrange(2, 100)}"
    if kind < 0.93:
        return f"{coined(rng, split)}-{rng.randrange(2, 100)}"
    return word(rng, split)


def extension(rng: random.Random, split: Split) -> str:
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(SHARED_EXTENSIONS)
    if kind < 0.75:
        return rng.choice(SIDE_EXTENSIONS[split])
    while True:
        made_up = rng.choice("bcdfgklmnprstvz") + rng.choice("aeiou") + rng.choice("bcdfgklmnprstvz")
        if side(made_up) == split:
            return made_up
