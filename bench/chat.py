"""Speed of prompts and parsing beside the model: python bench/chat.py

Prints tokens per second for one core: tokenizing text, a 30,000-token history cold and remembered, parsing a turn.
"""

import sysconfig
import time
from pathlib import Path

from longstep.chat.model import ChatRequest
from longstep.chat.parser import Parser
from longstep.chat.tokenizer import Tokenizer
from longstep.chat.xtml import Encoder
from longstep.messages import Text, Thinking, ToolCall, ToolResult, Turn, User


def seconds(run, repeats=5):
    """The fastest of some runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    tokenizer = Tokenizer.load()
    text = "".join(p.read_text() for p in sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py")))
    num_text = len(tokenizer.encode_ordinary(text))

    warm = Encoder(tokenizer)
    history = [User(text="Repair the project.")]
    pieces = iter([text[i : i + 1200] for i in range(0, len(text), 1200)])
    while len(warm.encode(ChatRequest(messages=tuple(history)))) < 30_000:
        call = ToolCall(id=str(len(history)), name="read_file", arguments={"path": "a.py", "start": 1})
        history += [
            Turn(parts=(Thinking(text="I read on."), call)),
            ToolResult(call_id=call.id, name="read_file", text=next(pieces)),
        ]
    request = ChatRequest(messages=tuple(history))
    num_prompt = len(warm.encode(request))

    turn = Turn(
        parts=(
            Thinking(text=text[:20_000]),
            Text(text=text[:20_000]),
            ToolCall(id="1", name="write_file", arguments={"path": "a.py", "text": text[:40_000]}),
        )
    )
    wrote = list(warm.written(turn)[0])

    def parse():
        parser = Parser(tokenizer)
        for token in wrote:
            parser.feed(token)
        parser.finish("end")

    rows = [
        ("tokenize text", num_text, seconds(lambda: tokenizer.encode_ordinary(text))),
        ("encode history, cold", num_prompt, seconds(lambda: Encoder(tokenizer).encode(request))),
        ("encode history, remembered", num_prompt, seconds(lambda: warm.encode(request))),
        ("parse a turn, streamed", len(wrote), seconds(parse)),
    ]
    print(f"{'what':28}{'tokens':>10}{'ms':>10}{'tokens/s':>14}")
    for name, num_tokens, spent_s in rows:
        print(f"{name:28}{num_tokens:>10,}{1000 * spent_s:>10.2f}{num_tokens / spent_s:>14,.0f}")


if __name__ == "__main__":
    main()
