"""Text to token ids and back: a byte-level BPE whose control tokens no text can reach.

Contract: `encode_ordinary` gives ordinary tokens only, whatever the text says: the control tokens are not known to the
BPE at all, they are a table beside it that only `special` reads. `decode(encode_ordinary(text)) == text` for any text
that is valid Unicode (a lone surrogate, which has no UTF-8 form, becomes U+FFFD).

The file is the `tokenizers` library's JSON (model, pre-tokenizer, added_tokens). Nothing in the code depends on an id:
`Tokenizer.id`, a hash of the file, says whether two sets of ids mean the same.
"""

import codecs
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from longstep.errors import ChatError, UserError

DEFAULT_PATH = Path(__file__).parent / "data" / "tokenizer.json"

END_OF_MSG, OPEN, CLOSE, SEP = "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"
BOS, EOS, PAD = "[BOS]", "[EOS]", "[PAD]"
SPECIALS = (
    *(BOS, EOS, END_OF_MSG, OPEN, CLOSE, SEP, "[EOT]"),
    *("<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"),
    *(f"<|reserved_token_{i}|>" for i in range(19)),
    *("[UNK]", PAD),
)

# In order: a word with the space or the underscore before it; one digit; a run of punctuation with the space before and
# the newlines after it; newlines; spaces. No other character may join a word: a name then has the same tokens after a
# bracket, a quote and a dot, which is what a small model that copies names needs.
_PIECES = r"[ _]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


class Tokenizer:
    """Made by `Tokenizer.load`. `bytes_of[id]` is the token's bytes, None for a control token."""

    def __init__(self, file: bytes, name: str):
        try:
            data = json.loads(file)
            self._specials: dict[str, int] = {token["content"]: token["id"] for token in data["added_tokens"]}
            vocab: dict[str, int] = data["model"]["vocab"]
            data["added_tokens"] = []  # so that the BPE cannot produce them
            self._bpe = tokenizers.Tokenizer.from_str(json.dumps(data))
        except Exception as e:  # the library raises plain Exception
            raise ChatError(f"{name}: not a tokenizer file ({e}); expected the JSON that train_tokenizer writes") from e
        if missing := [s for s in (END_OF_MSG, OPEN, CLOSE, SEP, BOS, EOS, PAD) if s not in self._specials]:
            raise ChatError(f"{name}: has no control token {', '.join(missing)}; train it with train_tokenizer")
        self.id = hashlib.sha256(file).hexdigest()[:16]
        self.vocab_size = len(vocab) + len(self._specials)
        names: list[str | None] = [None] * self.vocab_size
        table: list[bytes | None] = [None] * self.vocab_size
        byte_of = _byte_alphabet()
        for token, i in vocab.items():
            table[i] = bytes(byte_of[char] for char in token)
        for token, i in self._specials.items():
            names[i] = token
        self.bytes_of: tuple[bytes | None, ...] = tuple(table)
        self._name_of = names
        self._encode_short = lru_cache(4096)(self._encode)  # tag names, attribute keys, indices: the same few again

    @staticmethod
    def load(path: Path | None = None) -> "Tokenizer":
        """From a file, a folder that holds `tokenizer.json`, or (None) the one in the package."""
        file = DEFAULT_PATH if path is None else path / "tokenizer.json" if path.is_dir() else path
        try:
            return Tokenizer(file.read_bytes(), str(file))
        except OSError as e:
            raise ChatError(f"{file}: cannot read the tokenizer ({e.strerror}); expected a tokenizer.json there") from e

    def special(self, name: str) -> int:
        """The id of a control token."""
        if name not in self._specials:
            raise ChatError(f"{name!r} is not a control token of this tokenizer; it has {', '.join(self._specials)}")
        return self._specials[name]

    def is_special(self, token: int) -> bool:
        return self.bytes_of[token] is None

    def encode_ordinary(self, text: str) -> Sequence[int]:
        """Ids of text in which nothing is special. The result is shared: do not change it."""
        return self._encode_short(text) if len(text) <= 32 else self._encode(text)

    def encode_ordinary_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode_ordinary` for each text, on all cores: for corpora."""
        return [e.ids for e in self._bpe.encode_batch([_utf8(t) for t in texts], add_special_tokens=False)]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._bpe.encode(_utf8(text), add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, for people: control tokens by their names, bytes that are not UTF-8 as U+FFFD."""
        out = bytearray()
        for i in ids:
            out += self.bytes_of[i] or (self._name_of[i] or "").encode()
        return out.decode("utf-8", "replace")

    def stream_decoder(self) -> "StreamDecoder":
        return StreamDecoder(self)


class StreamDecoder:
    """Ids to text as they arrive: text comes out when its last byte has come, never half a character."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        data = self._tokenizer.bytes_of[token]
        if data is None:
            return self._utf8.decode(b"", True) + self._tokenizer.decode([token])
        return self._utf8.decode(data)

    def finish(self) -> str:
        return self._utf8.decode(b"", True)


def train_tokenizer(texts: Iterable[str], path: Path, vocab_size: int = 8192) -> Tokenizer:
    """Learn a BPE with `vocab_size` entries in all, control tokens last, and write it.

    `texts` are ordinary texts as the encoder sees them: documents, and the ordinary segments of conversations
    (`xtml.ordinary_texts`). Raises UserError if they do not hold enough different pieces for so many merges.
    """
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    bpe.train_from_iterator((_utf8(t) for t in texts), trainer)
    bpe.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    if bpe.get_vocab_size() != vocab_size:
        raise UserError(
            f"the texts give {bpe.get_vocab_size()} tokens, but {vocab_size} were asked for: "
            f"train on more text, or ask for a smaller vocabulary"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    bpe.save(str(path), pretty=False)
    return Tokenizer.load(path)


def _utf8(text: str) -> str:
    """The text, with U+FFFD for lone surrogates (JSON can carry them; UTF-8 cannot)."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in a byte-level vocabulary: printable ones as they are, the rest from 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
