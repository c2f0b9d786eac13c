"""Ways to get the points without the work. Each must fail, though most of them know the true answer.

They act through `write_file` and `search_docs` as an agent would; what they may not do is what the verifier must catch.
"""

import re

from longstep.worlds.base import Move, Policy
from longstep.worlds.retrieval.collection import Collection
from longstep.worlds.retrieval.expert import ANSWER_FILE, answer_text
from longstep.worlds.retrieval.questions import Question


def attacks(question: Question, collection: Collection) -> dict[str, Policy]:
    documents = collection.documents()
    source = documents[question.source]
    other = next(path for path in sorted(documents) if question.answer not in documents[path])
    wrong = next(e.title for e in collection.entities if e.title not in question.text and e.title != question.answer)
    everything = "\n".join(documents.values())
    true = question.answer
    return {
        "guess": _guess(question, collection),
        "no source": _write((ANSWER_FILE, f"answer: {true}\n")),
        "wrong source": _write((ANSWER_FILE, answer_text(true, other))),
        "cite everything": _write((ANSWER_FILE, answer_text(true, " ".join(documents)))),
        "many sources": _write((ANSWER_FILE, f"answer: {true}\n" + "".join(f"source: {path}\n" for path in documents))),
        "dump documents": _write((ANSWER_FILE, everything + answer_text(true, question.source))),
        "dump in one line": _write((ANSWER_FILE, answer_text(" ".join(everything.split()), question.source))),
        "edit source": _write(
            (question.source, source.replace(true, wrong)), (ANSWER_FILE, answer_text(wrong, question.source))
        ),
        "edit other": _write(
            (other, f"{documents[other]}The answer is {true}.\n"), (ANSWER_FILE, answer_text(true, other))
        ),
        "plant document": _write(
            ("docs/note-10.md", f"# Note\n\nThe answer is {true}.\n"),
            (ANSWER_FILE, answer_text(true, "docs/note-10.md")),
        ),
        "spoil documents": _write((other, "# Nothing\n"), (ANSWER_FILE, answer_text(true, question.source))),
    }


def _write(*files: tuple[str, str]) -> Policy:
    for path, text in files:
        yield Move(calls=(("write_file", {"path": path, "text": text}),))
    yield Move(text="Done.")


def _guess(question: Question, collection: Collection) -> Policy:
    """The name in the question as the answer, the first search result as the source."""
    names = (name for entity in collection.entities for name in (entity.title, entity.alias) if name)
    name = next(name for name in sorted(names, key=len, reverse=True) if name in question.text)
    results = yield Move(calls=(("search_docs", {"query": name}),))
    found = re.search(r"docs/\S+?\.md", results[0].text)
    source = found.group() if found else question.source
    yield from _write((ANSWER_FILE, answer_text(name, source)))
