"""One error model for the whole house.

    LongstepError
    |- UserError         the caller's mistake: bad option, missing folder, unknown preset; exit code 2
    |- ChatError         a conversation that cannot be encoded, or model output that cannot be read
    |  '- ContextFull    a prompt that leaves no room for an answer
    |- CheckpointError   weights on disk that are missing, truncated or of another shape
    |- SandboxError      no place to run commands, or the place broke
    |- JournalError      a run's record that cannot be read or continued
    |- WorldError        a task generator or verifier broke: never the agent's fault

The user's mistake is an exception with advice; ours is an `assert` with the invariant; the outside world's is a type
named after the boundary that it crossed. `cli.py` prints `str(error)` as one sentence and exits with `exit_code`;
nothing else catches `LongstepError` without raising another one. A tool that fails is not an error here: it is a result
that the model reads (`messages.ToolResult.is_error`).
"""


class LongstepError(Exception):
    """Base of all expected errors. The message names the thing, what it is, what was expected, and the next move."""

    exit_code = 1


class UserError(LongstepError):
    """The caller asked for something that cannot be: says what was given, what is accepted, what to type next."""

    exit_code = 2


class ChatError(LongstepError):
    """A conversation that cannot be encoded, or model output that cannot be read back."""


class CheckpointError(LongstepError):
    """Weights that are missing, truncated, or that do not fit the config beside them."""


class SandboxError(LongstepError):
    """Commands cannot be run safely here, or the sandbox itself failed."""


class JournalError(LongstepError):
    """A run's journal is damaged before its tail, of an unknown version, or does not exist."""


class WorldError(LongstepError):
    """A task generator, expert or verifier failed. Such an episode is dropped, not scored."""


class ContextFull(ChatError):  # noqa: N818
    """The prompt leaves no room for an answer. Carries both numbers, so that a caller can cut or compact."""

    def __init__(self, *, num_tokens: int, context_tokens: int):
        super().__init__(
            f"the prompt has {num_tokens} tokens and the model's context is {context_tokens}: "
            f"shorten the task, or use a model with a longer context"
        )
        self.num_tokens, self.context_tokens = num_tokens, context_tokens
