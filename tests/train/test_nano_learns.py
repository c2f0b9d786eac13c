"""The proof that the whole path learns: experts play, a network of random weights is trained on what they wrote, saved,
loaded into the engine, and solves tasks that it has not seen, in the same loop and judged by the same verifier."""

import pytest

from longstep.chat.model import Sampling
from longstep.chat.tokenizer import DEFAULT_PATH
from longstep.engine import load_model
from longstep.evals import run_eval
from longstep.sandbox.unsafe import NoSandbox
from longstep.train.episodes import make_episodes
from longstep.train.loop import TrainConfig, train
from longstep.train.optim import OptimConfig
from longstep.train.pack import Source
from longstep.worlds.base import FIRST_TEST_SEED
from longstep.worlds.registry import world

NUM_TASKS = 40


@pytest.mark.timeout(1800)
def test_from_nothing_to_solving_a_tiny_world(tmp_path):
    made = make_episodes(
        {"tiny": 1.0},
        out=tmp_path / "episodes",
        num_episodes=1000,
        efforts={"high": 1.0},
        num_processes=0,
        unsafe=True,  # an expert writes one word to one file
        quiet=True,
    )
    assert made["failures"] == {}
    summary = train(
        TrainConfig(
            stage="sft",
            preset="nano",
            sources=(Source(folder=tmp_path / "episodes"),),
            out=tmp_path / "run",
            tokenizer_file=DEFAULT_PATH,
            steps=380,
            batch_tokens=2048,
            row_tokens=1024,
            optim=OptimConfig(lr=5e-3),
            warm_up_steps=10,
            decay=0.35,
            device="cpu",
            quiet=True,
        )
    )
    assert summary.loss < 0.02, f"loss {summary.loss:.4f}: words and files are not copied yet"
    assert summary.load_ratio <= 1.5, f"max/mean load {summary.load_ratio:.2f}"

    def solved(weights):
        results = run_eval(
            load_model(weights, num_slots=8, max_tokens=1024),
            [world("tiny")],
            efforts=["high"],
            seeds=range(FIRST_TEST_SEED, FIRST_TEST_SEED + NUM_TASKS),
            out_json=tmp_path / "eval.json",
            sandbox=NoSandbox(),
            sampling=Sampling(temperature=0.0, max_tokens=200),
            resume=False,
        )
        return results["worlds"]["tiny"]["high"]["known"]["solved"]

    num_solved = solved(summary.checkpoint)
    assert num_solved >= 0.9 * NUM_TASKS, f"solved {num_solved} of {NUM_TASKS}"
