"""The command line: one function a verb. Parse, call, print; no logic lives here.

Work is imported inside the verbs, so that `longstep --help` does not wait for torch. Exit codes: 0 done and proved,
1 done but not proved, or a failure outside; 2 a mistake in what was asked; 130 stopped by Ctrl-C (state kept).
"""

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from longstep.errors import LongstepError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown")
train_app = typer.Typer(no_args_is_help=True, help="Teach a model: corpus, episodes, pretrain, sft.")
eval_app = typer.Typer(no_args_is_help=True, help="Measure a model on worlds; compare two results.")
app.add_typer(train_app, name="train")
app.add_typer(eval_app, name="eval")

EffortOption = Annotated[str, typer.Option(help="How deep the model may think: low, high or max.")]
WeightsOption = Annotated[Optional[Path], typer.Option(help="Folder with the model. Default: the bundled weights/micro.")]


@app.command()
def count(
    preset: Annotated[str, typer.Option(help="k3, k3.1-pro, micro, tiny or nano.")] = "micro",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    context: Annotated[int, typer.Option(help="Context in tokens for the FLOPs of one more token.")] = 8192,
) -> None:
    """Count a model: parameters by part, checkpoint and cache bytes, FLOPs per token."""
    from longstep.model.count import print_count

    print_count(preset, as_json=json, context=context)


def main() -> None:
    """Run a verb. An expected error is one sentence on stderr and its exit code."""
    try:
        app(standalone_mode=True)
    except LongstepError as error:
        print(f"longstep: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("longstep: stopped; nothing that was written is lost", file=sys.stderr)
        sys.exit(130)
