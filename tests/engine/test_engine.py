"""The engine samples the same tokens for any chunking, in any company, with and without a reused snapshot."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from longstep.chat.model import ChatRequest, Sampling, fold
from longstep.chat.tokenizer import DEFAULT_PATH, Tokenizer
from longstep.checkpoint import save
from longstep.engine import Engine, LocalModel, load_model
from longstep.engine.scheduler import Sequence, Slots
from longstep.errors import CheckpointError, ContextFull, UserError
from longstep.messages import User
from longstep.model import Model, preset


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    model = Model(preset("nano")).double().eval()
    with torch.no_grad():
        model.head.weight.mul_(40)  # far-apart logits, so that sampling is not near-uniform
    return model


def generate(engine: Engine, prompt: list[int], **sampling: float) -> list[int]:
    return generate_all(engine, [prompt], **sampling)[0]


def generate_all(engine: Engine, prompts: list[list[int]], **sampling: float) -> list[list[int]]:
    out: list[list[int]] = [[] for _ in prompts]
    ended = [threading.Event() for _ in prompts]
    errors: list[Exception] = []
    for i, prompt in enumerate(prompts):
        engine.submit(
            Sequence(
                tokens=list(prompt),
                sampling=Sampling(**{"max_tokens": 12, "seed": i, **sampling}),
                stop_tokens=frozenset(),
                on_token=lambda token, _, i=i: out[i].append(token),
                on_stop=lambda _, i=i: ended[i].set(),
                on_error=lambda e, i=i: (errors.append(e), ended[i].set()),
            )
        )
    assert all(e.wait(60) for e in ended)
    assert not errors, errors
    return out


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 8192, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_tokens_for_any_chunking(model, temperature):
    (prompt,) = prompts(131)
    got = {
        chunk: generate(Engine(model, num_slots=1, max_tokens=256, chunk_tokens=chunk), prompt, temperature=temperature)
        for chunk in (1, 7, 64, 131, 512)
    }
    assert len({tuple(tokens) for tokens in got.values()}) == 1, got


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_same_tokens_alone_and_in_company(model, temperature):
    several = prompts(5, 70, 33, 128, 9)
    engine = Engine(model, num_slots=3, max_tokens=256, chunk_tokens=32)  # fewer slots than sequences: two must wait
    together = generate_all(engine, several, temperature=temperature)
    alone = [
        generate(Engine(model, num_slots=1, max_tokens=256), prompt, temperature=temperature, seed=i)
        for i, prompt in enumerate(several)
    ]
    assert together == alone
    engine.close()
    engine.check()


def test_different_seeds_differ(model):
    (prompt,) = prompts(20)
    engine = Engine(model, num_slots=1, max_tokens=256)
    a, b = (generate(engine, prompt, temperature=1.0, seed=seed) for seed in (1, 2))
    assert a != b, "the seed has no effect"


def test_a_continued_conversation_reuses_its_snapshot_and_changes_nothing(model):
    (prompt,) = prompts(40)
    engine = Engine(model, num_slots=2, max_tokens=256)
    first = generate(engine, prompt)
    longer = [*prompt, *first, *prompts(25)[0]]

    taken = []
    original = engine.scheduler.slots.take
    engine.scheduler.slots.take = lambda p: taken.append(original(p)) or taken[-1]
    second = generate(engine, longer)

    assert taken[0][1] == len(prompt) + len(first) - 1, "all but the last sampled token were in the cache"
    assert second == generate(Engine(model, num_slots=1, max_tokens=256), longer)


def test_slots_never_serve_a_prompt_that_only_shares_a_beginning():
    slots = Slots(2, reset=lambda _: None)
    slot, reused = slots.take([1, 2, 3])
    assert reused == 0
    slots.keep(slot, [1, 2, 3])
    assert slots.take([1, 2, 9, 9]) == (1 - slot, 0), "a KDA state cannot be cut back to [1, 2]"
    assert slots.take([1, 2, 3, 4]) == (slot, 3)
    assert slots.take([5]) is None, "all slots are active"
    slots.check()


def test_a_failing_model_is_told_and_the_engine_goes_on(model, monkeypatch):
    engine = Engine(model, num_slots=1, max_tokens=64)
    error = RuntimeError("broken")
    seen: list[Exception] = []
    ended = threading.Event()
    monkeypatch.setattr(model, "logits", lambda _: (_ for _ in ()).throw(error))
    engine.submit(
        Sequence(
            [1, 2, 3], Sampling(), frozenset(), lambda *_: None, lambda _: None, lambda e: (seen.append(e), ended.set())
        )
    )
    assert ended.wait(60)
    assert seen == [error]
    monkeypatch.undo()
    assert len(generate(engine, [1, 2, 3])) == 12
    engine.close()
    engine.check()


def test_local_model_streams_folds_and_refuses_a_full_context(model):
    engine = Engine(model, num_slots=1, max_tokens=128)
    local = LocalModel(engine, Tokenizer.load(), "nano")
    request = ChatRequest(messages=(User(text="hi"),), sampling=Sampling(max_tokens=8), effort="low")
    turn = asyncio.run(fold(local.stream(request)))
    assert turn.effort == "low"
    assert turn.sampled is not None
    assert turn.usage.output == len(turn.sampled.tokens) <= 8
    assert turn.usage.fresh_input == local.count_tokens(request)

    long = ChatRequest(messages=(User(text="word " * 200),))
    with pytest.raises(ContextFull, match="128"):
        asyncio.run(fold(local.stream(long)))


def test_leaving_the_stream_frees_the_slot(model):
    engine = Engine(model, num_slots=1, max_tokens=4096)
    local = LocalModel(engine, Tokenizer.load(), "nano")

    async def leave_early() -> None:
        events = local.stream(ChatRequest(messages=(User(text="hi"),), sampling=Sampling(max_tokens=4000)))
        async for _ in events:
            break
        await events.aclose()

    asyncio.run(leave_early())
    assert len(generate(engine, [1, 2, 3])) == 12, "the only slot came back"
    engine.close()
    engine.check()


@pytest.fixture
def weights(tmp_path):
    """A whole checkpoint of a small network."""
    save(
        tmp_path / "w",
        Model(preset("nano")),
        tokenizer_file=DEFAULT_PATH,
        tokenizer=Tokenizer.load().id,
        card="",
    )
    return tmp_path / "w"


def test_weights_with_another_tokenizer_are_refused(weights, tmp_path):
    assert load_model(weights).name.startswith("nano-")
    save(tmp_path / "x", Model(preset("nano")), tokenizer_file=DEFAULT_PATH, tokenizer="0123456789abcdef", card="")
    with pytest.raises(CheckpointError, match="were trained with 0123456789abcdef"):
        load_model(tmp_path / "x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_slots": 0}, "0 conversations at a time"),
        ({"max_tokens": -1}, "-1 tokens of context"),
        ({"num_slots": 10**9}, "do not fit into memory"),
        ({"device": "abacus"}, "device 'abacus' is unknown"),
    ],
)
def test_what_a_model_cannot_be_opened_with(weights, options, message):
    with pytest.raises(UserError, match=message):
        load_model(weights, **options)


LEFT = """
import threading, torch
from longstep.engine import Engine
from longstep.engine.scheduler import Sequence
from longstep.chat.model import Sampling
from longstep.model import Model, preset

torch.set_num_threads(1)
started = threading.Event()
Engine(Model(preset("nano")).eval(), num_slots=1, max_tokens=8192).submit(Sequence(
    tokens=[1] * 10, sampling=Sampling(max_tokens=8000), stop_tokens=frozenset(),
    on_token=lambda *_: started.set(), on_stop=print, on_error=print,
))
assert started.wait(60)
"""


def test_a_program_may_end_while_the_engine_works():
    """The interpreter must not go under a thread that is inside torch: that is an abort, not an exit."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", LEFT], cwd=root, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "aborted\n", "")
