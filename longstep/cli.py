"""The command line: one function a verb. Parse, call, print; no logic lives here.

Work is imported inside the verbs, so that `longstep --help` does not wait for torch. Exit codes: 0 done and proved,
1 done but not proved, or a failure outside; 2 a mistake in what was asked; 130 stopped by Ctrl-C (state kept).
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longstep.errors import LongstepError, UserError

if TYPE_CHECKING:
    from longstep.chat.model import ChatModel
    from longstep.train.pack import Source

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
train_app = typer.Typer(no_args_is_help=True, help="Teach a model: corpus, episodes, tokens, pretrain, sft.")
eval_app = typer.Typer(no_args_is_help=True, help="Measure a model on worlds; compare two results.")
app.add_typer(train_app, name="train")
app.add_typer(eval_app, name="eval")

Weights = Annotated[Path | None, typer.Option(help="Folder with the model. Default: the bundled weights/micro.")]
NoSandbox = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="Run commands without walls. Only if you trust them.")
]
TokenizerFile = Annotated[Path | None, typer.Option("--tokenizer", help="Default: the one that comes with Longstep.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@app.command()
def run(
    task: Annotated[str | None, typer.Argument(help="What to do, in plain words.")] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="A folder to work on; default: this one. It is copied; see --apply.")
    ] = None,
    world: Annotated[
        str | None, typer.Option(help="Take the task from a world instead: terminal, repair or retrieval.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which task of the world. Default: 0.")] = None,
    family: Annotated[
        str | None, typer.Option(help="Which kind of task of the world. Default: the seed's choice.")
    ] = None,
    effort: Annotated[str | None, typer.Option(help="low, high or max. Default: high.")] = None,
    max_steps: Annotated[
        int | None, typer.Option(help="Stop after this many steps. Default: 40, or the world's.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write proved changes back to the workspace.")] = False,
    resume: Annotated[str | None, typer.Option(help="Go on with a run that was stopped: its id.")] = None,
    json: Json = False,
    unsafe_no_sandbox: NoSandbox = False,
    weights: Weights = None,
) -> None:
    """Work on a task with the agent, step by step. Exit code 0 only if the result is proved."""
    from longstep.agent.run import Ask, run_task

    ask = Ask(
        task=task,
        workspace=workspace,
        world=world,
        seed=seed,
        family=family,
        effort=effort,
        max_steps=max_steps,
        resume=resume,
        apply=apply,
        as_json=json,
        unsafe_no_sandbox=unsafe_no_sandbox,
    )
    raise typer.Exit(run_task(ask, lambda: _open_model(weights)).exit_code)


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Which project to repair.")] = 1,
    effort: Annotated[str, typer.Option(help="low, high or max.")] = "high",
    unsafe_no_sandbox: NoSandbox = False,
    weights: Weights = None,
) -> None:
    """Watch the bundled model repair a Python project that it has never seen. Exit code 0 only if its tests pass."""
    from longstep.agent.run import Ask, run_task
    from longstep.worlds.repair.world import demo_task

    task = demo_task(seed)
    ask = Ask(world=task.world, seed=task.seed, family=task.family, effort=effort, unsafe_no_sandbox=unsafe_no_sandbox)
    raise typer.Exit(run_task(ask, lambda: _open_model(weights)).exit_code)


@app.command()
def render(
    request: Annotated[Path, typer.Argument(help="JSON file: messages, tools, tool_choice, reasoning_effort.")],
    phrases: Annotated[Path | None, typer.Option(help="Wordings instead of ours; see docs/phrases.md.")] = None,
    segments: Annotated[
        bool, typer.Option("--segments", help="One JSON object a segment: special or ordinary.")
    ] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Token ids.")] = False,
) -> None:
    """Print the exact prompt of an OpenAI-style request."""
    from longstep.chat.request import render_request

    sys.stdout.write(render_request(request, phrases=phrases, show_segments=segments, show_tokens=tokens))


@app.command()
def count(
    preset: Annotated[str, typer.Option(help="k3, k3.1-pro, micro, tiny or nano.")] = "micro",
    json: Json = False,
    context: Annotated[int, typer.Option(help="Context in tokens for the FLOPs of one more token.")] = 8192,
) -> None:
    """Count a model: parameters by part, checkpoint and cache bytes, FLOPs per token."""
    from longstep.model.count import print_count

    print_count(preset, as_json=json, context=context)


@eval_app.command("run")
def eval_run(
    json: Annotated[Path, typer.Option(help="Where the summary goes; records go beside it as .jsonl.")],
    worlds: Annotated[str, typer.Option(help="Names with commas between.")] = "terminal,repair,retrieval",
    efforts: Annotated[str, typer.Option(help="low, high, max; commas between.")] = "high",
    seeds: Annotated[str, typer.Option(help="FIRST:END; test seeds begin at 1000000.")] = "1000000:1000050",
    families: Annotated[str | None, typer.Option(help="Only these kinds of task; commas between.")] = None,
    model: Annotated[str | None, typer.Option(help="A baseline instead: expert, nothing or attack.")] = None,
    concurrency: Annotated[int, typer.Option(help="Episodes at a time; they are decoded together.")] = 16,
    temperature: Annotated[float, typer.Option(help="0 is greedy, as in `longstep run`.")] = 0.0,
    restart: Annotated[bool, typer.Option("--restart", help="Drop earlier records instead of going on.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    context: Annotated[int | None, typer.Option(help="Longest conversation in tokens.")] = None,
    weights: Weights = None,
    unsafe_no_sandbox: NoSandbox = False,
) -> None:
    """Measure success, steps, tokens and cost on the worlds' tasks, with 95% intervals. Goes on where it stopped."""
    from longstep.agent.loop import DEFAULT_LIMITS
    from longstep.agent.view import make_console
    from longstep.chat.model import Sampling
    from longstep.engine import load_model
    from longstep.evals.run import baseline, parse_efforts, parse_seeds, run_eval
    from longstep.evals.show import summary_view
    from longstep.sandbox.unsafe import open_sandbox
    from longstep.worlds.registry import world

    chosen = [world(name) for name in dict.fromkeys(worlds.split(","))]
    asked_efforts, asked_seeds = parse_efforts(efforts), parse_seeds(seeds)  # before a model is loaded
    player = (
        load_model(weights, num_slots=concurrency, max_tokens=context, device=device)
        if model is None
        else baseline(model)
    )
    summary = run_eval(
        player,
        chosen,
        efforts=asked_efforts,
        seeds=asked_seeds,
        out_json=json,
        sandbox=open_sandbox(unsafe_no_sandbox),
        name=model,
        families=None if families is None else families.split(","),
        sampling=Sampling(temperature=temperature, max_tokens=DEFAULT_LIMITS.max_output_tokens),
        concurrency=concurrency,
        resume=not restart,
        show_progress=True,
    )
    make_console().print(summary_view(summary))


@eval_app.command("compare")
def eval_compare(
    a: Annotated[Path, typer.Argument(help="A summary that `eval run` wrote.")],
    b: Annotated[Path, typer.Argument(help="Another, on the same tasks.")],
) -> None:
    """Compare two results task by task: paired difference, exact McNemar, what only one of them solved."""
    from longstep.agent.view import make_console
    from longstep.evals.compare import compare
    from longstep.evals.show import comparison_view

    make_console().print(comparison_view(compare(a, b)))


@train_app.command("corpus")
def train_corpus(
    out: Annotated[Path, typer.Option(help="Folder for the corpus and its manifest.")],
    python: Annotated[
        list[Path] | None, typer.Option(help="Folders of installed packages. Default: this Python's.")
    ] = None,
    docs: Annotated[list[Path] | None, typer.Option(help="Folders like /usr/share/doc. Default: that one.")] = None,
    max_mb: Annotated[int, typer.Option(help="At most this many megabytes of text.")] = 200,
) -> None:
    """Gather text to pretrain on from permissively licensed packages that are installed here."""
    from longstep.train.corpus import build_corpus

    build_corpus(out, python_roots=python, docs=docs, max_bytes=max_mb * 1_000_000, tell=print)


@train_app.command("episodes")
def train_episodes(
    out: Annotated[Path, typer.Option(help="Folder for the token shards.")],
    worlds: Annotated[str, typer.Option(help="NAME=WEIGHT with commas between.")] = "terminal=1,repair=1,retrieval=1",
    number: Annotated[
        int | None, typer.Option(help="How many episodes. Default: 1000; with --parts until stopped.")
    ] = None,
    parts: Annotated[
        int | None, typer.Option(help="Write part after part of so many episodes, for `--grow` of pretrain and sft.")
    ] = None,
    first_seed: Annotated[int, typer.Option(help="First training seed.")] = 0,
    processes: Annotated[int | None, typer.Option(min=1, help="Default: one for each usable core.")] = None,
    max_document: Annotated[int, typer.Option(help="Longest episode in tokens; longer ones are left out.")] = 8192,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time.")] = None,
    verify: Annotated[float, typer.Option(help="Share of episodes whose result is verified.")] = 1.0,
    tokenizer: TokenizerFile = None,
    unsafe_no_sandbox: NoSandbox = False,
) -> None:
    """Let the worlds' experts play, and write their episodes as token shards."""
    from longstep.train.episodes import make_episodes, make_parts

    if parts is not None:
        make_parts(
            _ratios(worlds.split(",")),
            out=out,
            part_episodes=parts,
            num_episodes=number,
            first_seed=first_seed,
            num_processes=processes,
            max_document=max_document,
            minutes=minutes,
            verify=verify,
            tokenizer_file=tokenizer,
            unsafe=unsafe_no_sandbox,
        )
        return
    make_episodes(
        _ratios(worlds.split(",")),
        out=out,
        num_episodes=1000 if number is None else number,
        first_seed=first_seed,
        num_processes=processes,
        max_document=max_document,
        minutes=minutes,
        verify=verify,
        tokenizer_file=tokenizer,
        unsafe=unsafe_no_sandbox,
    )


@train_app.command("tokens")
def train_tokens(
    corpus: Annotated[Path, typer.Option(help="A corpus that `train corpus` made.")],
    out: Annotated[Path, typer.Option(help="Folder for the token shards.")],
    repairs: Annotated[
        bool, typer.Option("--repairs", help="Repairs of the corpus's functions instead of its text.")
    ] = False,
    processes: Annotated[int | None, typer.Option(min=1, help="Default: one for each usable core.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Stop at this many tokens.")] = None,
    tokenizer: TokenizerFile = None,
) -> None:
    """Write a corpus as token shards: its text, or repairs of bugs put into its functions."""
    from longstep.train.tokens import write_tokens

    write_tokens(corpus, out, repairs=repairs, num_processes=processes, max_tokens=max_tokens, tokenizer_file=tokenizer)


@train_app.command("tokenizer")
def train_tokenizer(
    corpus: Annotated[Path, typer.Option(help="A corpus that `train corpus` made.")],
    episodes: Annotated[list[Path], typer.Option(help="Episodes that `train episodes` made; may be given again.")],
    out: Annotated[Path, typer.Option(help="File for the tokenizer.")],
    vocab_size: Annotated[int, typer.Option(help="Tokens in all, control tokens included.")] = 8192,
) -> None:
    """Learn a vocabulary from a quarter of a corpus and the text of episodes; other verbs take it as --tokenizer."""
    from longstep.train.tokens import learn_tokenizer

    made = learn_tokenizer(corpus, episodes, out, vocab_size=vocab_size)
    print(f"{out}: {made.vocab_size:,} tokens, id {made.id}")


@train_app.command("pretrain")
def train_pretrain(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    data: Annotated[
        list[str] | None, typer.Option(help="FOLDER or FOLDER=RATIO of token shards; may be given again.")
    ] = None,
    grow: Annotated[
        list[str] | None, typer.Option(help="The same, of parts that are still being written: `episodes --parts`.")
    ] = None,
    preset: Annotated[str, typer.Option(help="micro, tiny or nano.")] = "micro",
    steps: Annotated[int | None, typer.Option(help="Stop after this many updates.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time, resumptions included.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's checkpoint.")] = False,
    init: Annotated[Path | None, typer.Option(help="Start from the weights of this checkpoint.")] = None,
    save_minutes: Annotated[float, typer.Option(help="Time between checkpoints.")] = 4.0,
    weights: Annotated[
        Path | None, typer.Option(help="Keep a second copy of each checkpoint here: the weights, ready to use.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of one update.")] = 131072,
    row_tokens: Annotated[int, typer.Option(help="Longest document in tokens.")] = 8192,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-3,
    decay: Annotated[float, typer.Option(help="Last share of the run in which the rate falls.")] = 0.0,
    warm_up: Annotated[int, typer.Option(help="First updates in which the rate rises.")] = 100,
    seed: Annotated[int, typer.Option(help="Of weights and of the order of the data.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    tokenizer: TokenizerFile = None,
) -> None:
    """Train on text: every token counts. Ctrl-C keeps the state; --resume goes on."""
    from longstep.train.loop import TrainConfig, train
    from longstep.train.optim import OptimConfig

    train(
        TrainConfig(
            stage="pretrain",
            preset=preset,
            sources=_sources(data, grow, split=True),
            out=out,
            tokenizer_file=tokenizer or _tokenizer_file(),
            weights=weights,
            save_minutes=save_minutes,
            steps=steps,
            minutes=minutes,
            init=init,
            resume=resume,
            batch_tokens=batch_tokens,
            row_tokens=row_tokens,
            optim=OptimConfig(lr=lr),
            warm_up_steps=warm_up,
            decay=decay,
            seed=seed,
            device=device,
        )
    )


@train_app.command("sft")
def train_sft(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    data: Annotated[
        list[str] | None, typer.Option(help="FOLDER or FOLDER=RATIO of token shards; may be given again.")
    ] = None,
    grow: Annotated[
        list[str] | None, typer.Option(help="The same, of parts that are still being written: `episodes --parts`.")
    ] = None,
    preset: Annotated[str, typer.Option(help="micro, tiny or nano.")] = "micro",
    steps: Annotated[int | None, typer.Option(help="Stop after this many updates.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this time, resumptions included.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's checkpoint.")] = False,
    init: Annotated[Path | None, typer.Option(help="Start from the weights of this checkpoint.")] = None,
    save_minutes: Annotated[float, typer.Option(help="Time between checkpoints.")] = 4.0,
    weights: Annotated[
        Path | None, typer.Option(help="Keep a second copy of each checkpoint here: the weights, ready to use.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of one update.")] = 131072,
    row_tokens: Annotated[int, typer.Option(help="Longest document in tokens.")] = 8192,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-3,
    decay: Annotated[float, typer.Option(help="Last share of the run in which the rate falls.")] = 0.3,
    warm_up: Annotated[int, typer.Option(help="First updates in which the rate rises.")] = 100,
    output_weight: Annotated[float, typer.Option(help="Weight of tool output, against 1 for the model's own.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of weights and of the order of the data.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    tokenizer: TokenizerFile = None,
) -> None:
    """Train on episodes: what the model writes counts. Ctrl-C keeps the state; --resume goes on."""
    from longstep.train.loop import TrainConfig, train
    from longstep.train.optim import OptimConfig

    train(
        TrainConfig(
            stage="sft",
            preset=preset,
            sources=_sources(data, grow, split=False),
            out=out,
            tokenizer_file=tokenizer or _tokenizer_file(),
            weights=weights,
            save_minutes=save_minutes,
            steps=steps,
            minutes=minutes,
            init=init,
            resume=resume,
            batch_tokens=batch_tokens,
            row_tokens=row_tokens,
            optim=OptimConfig(lr=lr),
            warm_up_steps=warm_up,
            decay=decay,
            output_weight=output_weight,
            seed=seed,
            device=device,
        )
    )


def _open_model(weights: Path | None) -> "ChatModel":
    from longstep.engine import load_model

    return load_model(weights)


def _tokenizer_file() -> Path:
    from longstep.chat.tokenizer import DEFAULT_PATH

    return DEFAULT_PATH


def _sources(data: list[str] | None, grow: list[str] | None, *, split: bool) -> "tuple[Source, ...]":
    from longstep.train.pack import Source

    return tuple(
        Source(folder=Path(name), ratio=ratio, split=split, grow=grows)
        for items, grows in ((data, False), (grow, True))
        for name, ratio in _ratios(items or []).items()
    )


def _ratios(items: list[str]) -> dict[str, float]:
    """NAME=RATIO, or NAME for a ratio of 1."""
    out: dict[str, float] = {}
    for item in items:
        name, _, ratio = item.partition("=")
        try:
            out[name] = float(ratio or 1)
        except ValueError:
            raise UserError(f"{item!r}: the ratio after = is not a number; write {name}=2, say") from None
    return out


def main() -> None:
    """Run a verb. An expected error is one sentence on stderr and its exit code."""
    try:
        try:
            app(standalone_mode=True)
        finally:
            sys.stdout.flush()  # what a full disk or a closed pipe has to say, it says here
    except LongstepError as error:
        print(f"longstep: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:  # a full disk, a folder that is shut: the world's failure, wherever it is met
        if not isinstance(error, BrokenPipeError):  # `longstep ... | head` has seen enough
            print(f"longstep: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter tries again at its end
        sys.exit(1)
    except SystemExit as end:
        # typer turns Ctrl-C into an exit without a word
        if end.__context__ is not None and isinstance(end.__context__.__cause__, KeyboardInterrupt):
            print("longstep: stopped; nothing that was written is lost", file=sys.stderr)
        raise
