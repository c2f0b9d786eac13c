"""The in-process model as a `ChatModel`: encode, generate, parse. One object serves many conversations at once."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from longstep import checkpoint
from longstep.chat.model import ChatRequest, Event, TurnDone
from longstep.chat.parser import Parser
from longstep.chat.tokenizer import END_OF_MSG, EOS, Tokenizer
from longstep.chat.xtml import Encoder
from longstep.engine.engine import Engine
from longstep.engine.scheduler import Sequence, Stop
from longstep.errors import CheckpointError, ContextFull, UserError
from longstep.messages import Usage

BUNDLED = Path(__file__).resolve().parents[2] / "weights" / "micro"


class LocalModel:
    """`name`, `context_tokens`, `stream` and `count_tokens` are those of `chat.model.ChatModel`.

    `stream` raises ContextFull, with both numbers, where a prompt leaves no room for an answer.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, name: str):
        self.engine, self.tokenizer, self.name = engine, tokenizer, name
        self.context_tokens = engine.max_tokens
        self._encoder = Encoder(tokenizer)
        self._stop_tokens = frozenset((tokenizer.special(END_OF_MSG), tokenizer.special(EOS)))

    def count_tokens(self, request: ChatRequest) -> int:
        return len(self._encoder.encode(request))

    async def stream(self, request: ChatRequest) -> AsyncIterator[Event]:
        prompt = self._encoder.encode(request)
        if len(prompt) >= self.context_tokens:
            raise ContextFull(num_tokens=len(prompt), context_tokens=self.context_tokens)
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[int | Stop | Exception] = asyncio.Queue()

        def send(item: int | Stop | Exception) -> None:
            with suppress(RuntimeError):  # the caller may have gone away with its loop
                loop.call_soon_threadsafe(inbox.put_nowait, item)

        seq = Sequence(
            tokens=prompt,
            sampling=request.sampling,
            stop_tokens=self._stop_tokens,
            on_token=lambda token, _logprob: send(token),
            on_stop=send,
            on_error=send,
        )
        parser = Parser(self.tokenizer, effort=request.effort, allow_calls=request.tool_choice != "none")
        self.engine.submit(seq)
        try:
            while not isinstance(item := await inbox.get(), str):
                if isinstance(item, Exception):
                    raise item
                for event in parser.feed(item):
                    yield event
            for event in parser.finish(item):
                yield _with_input(event, seq) if isinstance(event, TurnDone) else event
        finally:
            seq.aborted = True  # harmless once the sequence has ended


def _with_input(done: TurnDone, seq: Sequence) -> TurnDone:
    """The parsed turn's usage knows its output; the engine knows what of the prompt was in the cache."""
    usage = Usage(
        fresh_input=seq.num_prompt - seq.num_reused,
        cache_read=seq.num_reused,
        output=done.turn.usage.output,
        reasoning=done.turn.usage.reasoning,
    )
    return TurnDone(msgspec.structs.replace(done.turn, usage=usage))


def load_model(
    weights: Path | None = None,
    *,
    num_slots: int = 1,
    max_tokens: int | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LocalModel:
    """The model in a folder (default: the bundled one), ready to talk.

    `num_slots` conversations decode together; each may hold `max_tokens` tokens (default: the config's context).
    Raises CheckpointError where the folder does not hold a whole model, UserError where they cannot be had here.
    """
    if device not in ("cpu", "cuda"):
        raise UserError(f"device {device!r} is unknown; there are cpu and cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device cuda: torch finds no GPU here; use cpu, or install torch for your GPU")
    for what, number in {"conversations at a time": num_slots, "tokens of context": max_tokens}.items():
        if number is not None and number < 1:
            raise UserError(f"{number} {what}: expected 1 or more")
    folder = BUNDLED if weights is None else weights
    if device == "cpu":
        # one core stays free for tools and the view: a step's threads wait for the slowest, and it may be preempted
        torch.set_num_threads(max(1, min(4, (os.cpu_count() or 1) - 1)))
    loaded = checkpoint.load(folder)
    tokenizer = Tokenizer.load(loaded.tokenizer_file)
    if tokenizer.id != loaded.manifest.tokenizer or tokenizer.vocab_size > loaded.cfg.vocab_size:
        raise CheckpointError(
            f"{loaded.tokenizer_file} is tokenizer {tokenizer.id} with {tokenizer.vocab_size} tokens, but the weights "
            f"were trained with {loaded.manifest.tokenizer} and {loaded.cfg.vocab_size}; copy the folder again, whole"
        )
    context_tokens = min(max_tokens or loaded.cfg.max_context, loaded.cfg.max_context)
    model = loaded.model.to(device=device, dtype=dtype)
    try:
        engine = Engine(model, num_slots=num_slots, max_tokens=context_tokens)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise UserError(
            f"{num_slots:,} conversations of {context_tokens:,} tokens do not fit into memory; ask for fewer or shorter"
        ) from None
    weights_hash = loaded.manifest.files["model.safetensors"].sha256
    return LocalModel(engine, tokenizer, f"{loaded.cfg.name}-{weights_hash[:8]}")
