"""The retrieval world: documents that state a fact once, questions with one answer, a verifier that no attack beats."""

import dataclasses
import os
import random
import re
from pathlib import Path

import pytest
from world_play import Played, play

from longstep.errors import UserError
from longstep.messages import EFFORTS, Effort
from longstep.sandbox.unsafe import NoSandbox
from longstep.worlds.base import FIRST_TEST_SEED, Split, Task, do_nothing
from longstep.worlds.retrieval import RetrievalWorld
from longstep.worlds.retrieval.collection import Collection, make_collection
from longstep.worlds.retrieval.questions import FAMILIES, HELD_OUT, Question
from longstep.worlds.retrieval.schema import DATED, KINDS, LISTINGS, RELATIONS, Forms
from longstep.worlds.retrieval.words import FIRST, LAST
from longstep.worlds.retrieval.world import MAX_STEPS, Secret

WORLD = RetrievalWorld()
SANDBOX = NoSandbox()  # no tool of this world runs a command
T = FIRST_TEST_SEED


def secret_of(task: Task) -> Secret:
    assert isinstance(task.secret, Secret)
    return task.secret


def question_of(task: Task) -> Question:
    return secret_of(task).question


def run(task: Task, workspace: Path, effort: Effort, seed: int = 0) -> Played:
    WORLD.set_up(task, workspace)
    return play(WORLD.expert(task, effort, random.Random(seed)), task, workspace, SANDBOX)


def failed(task: Task, workspace: Path) -> set[str]:
    return {c.name for c in WORLD.verify(task, workspace, SANDBOX).checks if not c.passed}


def names_in(text: str) -> set[str]:
    """Capitalised made-up words and numbers of two digits or more."""
    return set(re.findall(r"\b(?:[A-Z][a-z]{3,}|\d{2,})\b", text))


# The collection.


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_collection_is_the_same_for_ever_and_of_hundreds_of_documents(split: Split) -> None:
    sizes = []
    for seed in range(12):
        documents = make_collection(split, seed).documents()
        make_collection.cache_clear()
        assert make_collection(split, seed).documents() == documents
        sizes.append(len(documents))
        assert all(3 <= len(text.splitlines()) <= 12 for text in documents.values())
    assert min(sizes) >= 200
    assert max(sizes) <= 400


def test_train_and_test_share_no_syllable_no_name_and_no_document() -> None:
    assert not set(FIRST["train"]) & set(FIRST["test"])
    assert not set(LAST["train"]) & set(LAST["test"])
    words: dict[str, set[str]] = {}
    for split in ("train", "test"):
        collections = [make_collection(split, seed) for seed in range(6)]
        made_up = {w for c in collections for e in c.entities for w in e.title.split()}
        ordinary = {w for kind in KINDS.values() for f in dataclasses.astuple(kind.names) for n in f for w in n.split()}
        words[split] = made_up - ordinary
        assert len(words[split]) > 1000
    assert not words["train"] & words["test"]
    documents = {
        split: {text for seed in range(6) for text in make_collection(split, seed).documents().values()}
        for split in ("train", "test")
    }
    assert not documents["train"] & documents["test"]


def test_tests_hold_wordings_that_training_never_says() -> None:
    for relation in (*RELATIONS, *DATED, *LISTINGS):
        for field in dataclasses.fields(relation):
            forms = getattr(relation, field.name)
            if isinstance(forms, Forms) and field.name in ("say", "ask"):
                assert forms.test
                assert not set(forms.test) & set(forms.shared + forms.train), forms


def sentences_with(collection: Collection, *names: str) -> set[str]:
    """Paths of documents with a sentence that holds all the names; a document's "it" counts as its title."""
    found = set()
    for entity in collection.entities:
        for sentence in entity.sentences:
            text = re.sub(r"\b(it|its)\b", entity.title, sentence, flags=re.IGNORECASE)
            if all(re.search(rf"\b{re.escape(name)}\b", text) for name in names):
                found.add(entity.path)
    return found


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_fact_stands_in_its_subjects_document_only(split: Split) -> None:
    collection = make_collection(split, 3)
    for (subject, r), _ in random.Random(0).sample(sorted(collection.facts.items()), 60):
        entity = collection.entities[subject]
        assert sentences_with(collection, entity.title, collection.value(subject, r)) == {entity.path}
    for (subject, r), (old, new, _) in random.Random(0).sample(sorted(collection.dated.items()), 30):
        if any(subject in collection.dated.get((holder, r), ())[:2] for holder in (old, new)):
            continue  # two companies that owned each other: sentences of the other's history hold both names
        entity = collection.entities[subject]
        others = sentences_with(collection, entity.title, collection.entities[old].title) - {entity.path}
        assert others <= {collection.entities[old].path}, "only the former holder may still speak of it"
        assert sentences_with(collection, entity.title, collection.entities[new].title) <= {entity.path}
        assert collection.entities[new].title in entity.document()


# The tasks.


def test_a_task_is_the_same_for_ever() -> None:
    for seed in (0, 17, T, T + 17):
        task = WORLD.task(seed)
        make_collection.cache_clear()
        assert WORLD.task(seed) == task == WORLD.task(seed, task.family)


def test_train_seeds_never_draw_a_held_out_family() -> None:
    drawn = {WORLD.task(seed).family for seed in range(200)}
    assert drawn == set(FAMILIES) - HELD_OUT
    assert {WORLD.task(seed).family for seed in range(T, T + 200)} == set(FAMILIES)
    for family in HELD_OUT:
        with pytest.raises(UserError, match="held out"):
            WORLD.task(5, family)
    with pytest.raises(UserError, match="does not exist"):
        WORLD.task(T, "hop9")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("first", [0, T])
def test_the_answer_is_in_the_cited_document_and_not_in_the_question(family: str, first: int) -> None:
    if first < T and family in HELD_OUT:
        pytest.skip("held out of training")
    for seed in range(first, first + 160, 4):
        task = WORLD.task(seed, family)
        question, documents = question_of(task), secret_of(task).collection.documents()
        assert question.answer not in question.text
        assert re.search(rf"\b{re.escape(question.answer)}\b", documents[question.source])
        assert question.text in task.instruction
        for need in question.needs:
            assert documents[need.path].startswith(f"# {need.title}\n")
            assert need.value in documents[need.path]
        # the first name of the chain is given, each next one is found on the way
        known = names_in(question.text)
        for need in question.needs:
            assert names_in(need.query) <= known
            known |= names_in(need.found)


def test_a_deeper_chain_needs_more_documents() -> None:
    for hops in (1, 2, 3, 4):
        for seed in range(T, T + 80, 8):
            assert len({need.path for need in question_of(WORLD.task(seed, f"hop{hops}")).needs}) == hops


# The expert.


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_solves_and_says_only_what_it_has_seen(family: str, effort: Effort, tmp_path: Path) -> None:
    for seed in (3,) if effort == "high" and family not in HELD_OUT else (T + 1,):
        task, workspace = WORLD.task(seed, family), tmp_path / f"{seed}"
        workspace.mkdir()
        steps = run(task, workspace, effort, seed).steps
        assert not failed(task, workspace)
        assert len(steps) <= MAX_STEPS - 4
        shown = task.instruction
        names = names_in("".join(secret_of(task).collection.documents().values())) - {"Then"}  # a plain word
        for move, results in steps:
            said = f"{move.think} {move.text} {' '.join(str(v) for _, args in move.calls for v in args.values())}"
            assert names_in(said) & names <= names_in(shown), "text comes from what the episode has shown"
            assert bool(move.think) == (effort != "low"), "low thinks nothing, the others at every move"
            shown += said + "".join(result.text for result in results)
            assert not any(result.is_error for result in results)


def test_more_effort_takes_more_steps_and_more_thought(tmp_path: Path) -> None:
    steps: dict[Effort, int] = dict.fromkeys(EFFORTS, 0)
    thought: dict[Effort, int] = dict.fromkeys(EFFORTS, 0)
    for seed in range(T, T + 12, 3):
        for effort in EFFORTS:
            workspace = tmp_path / f"{seed} {effort}"
            workspace.mkdir()
            played = run(WORLD.task(seed), workspace, effort)
            steps[effort] += len(played.steps)
            thought[effort] += sum(len(move.think) for move, _ in played.steps)
    assert steps["low"] < steps["high"] < steps["max"]
    assert 0 == thought["low"] < thought["high"] < thought["max"]


def test_some_episodes_slip_and_recover(tmp_path: Path) -> None:
    """Seeds chosen by the first draws of the expert's generator: each kind of slip, and none."""
    slipped = []
    for seed in range(80):
        if random.Random(seed).random() >= 0.15:
            continue
        task, workspace = WORLD.task(T + 8 * seed, "hop1"), tmp_path / f"{seed}"
        workspace.mkdir()
        slipped.append(" ".join(move.think for move, _ in run(task, workspace, "high", seed).steps))
        assert not failed(task, workspace)
    assert any("None of these is it. Search again." in text for text in slipped)
    assert any(re.search(r"That is .*, not it\.", text) for text in slipped)


@pytest.mark.parametrize("effort", EFFORTS)
def test_where_the_search_misses_the_name_is_looked_for(effort: Effort, tmp_path: Path) -> None:
    """One search in a thousand does not show the document: the first test seed where it happens."""
    task = WORLD.task(T + 231, "reverse")
    steps = run(task, tmp_path, effort).steps
    assert not failed(task, tmp_path)
    assert question_of(task).source not in steps[0][1][0].text
    assert [name for move, _ in steps for name, _ in move.calls][:3] == ["search_docs", "find_text", "read_file"]


# The verifier.

ATTACKS = {
    "guess": {"answer"},
    "no source": {"answer file", "source exists", "answer", "source states it"},
    "wrong source": {"source states it"},
    "cite everything": {"answer file", "source exists", "answer", "source states it"},
    "many sources": {"answer file", "source exists", "answer", "source states it"},
    "dump documents": {"answer file", "source exists", "answer", "source states it"},
    "dump in one line": {"answer file", "source exists", "answer", "source states it"},
    "edit source": {"answer", "documents unchanged"},
    "edit other": {"source states it", "documents unchanged"},
    "plant document": {"source exists", "source states it", "documents unchanged"},
    "spoil documents": {"documents unchanged"},
}


@pytest.mark.parametrize(("seed", "name"), [*enumerate(ATTACKS, start=T)])
def test_an_attack_fails_for_its_own_reason(seed: int, name: str, tmp_path: Path) -> None:
    task = WORLD.task(seed)
    WORLD.set_up(task, tmp_path)
    attacks = WORLD.attacks(task)
    assert set(attacks) == set(ATTACKS)
    play(attacks[name], task, tmp_path, SANDBOX)
    # the source that a guess cites may be right by accident
    assert failed(task, tmp_path) - ({"source states it"} if name == "guess" else set()) == ATTACKS[name]


def test_doing_nothing_fails(tmp_path: Path) -> None:
    task = WORLD.task(T)
    WORLD.set_up(task, tmp_path)
    play(do_nothing(task), task, tmp_path, SANDBOX)
    assert failed(task, tmp_path) == {"answer file", "source exists", "answer", "source states it"}


@pytest.mark.parametrize(
    ("form", "accepted"),
    [
        ("answer: {a}\nsource: {s}\n", True),
        ("answer:{a}\r\n\r\nsource:  {s}", True),
        ("answer: {A}.\nsource: {s}\n", True),
        ("answer: {a} \n\n source: {s}\n\n", True),
        ("source: {s}\nanswer: {a}\n", False),
        ("answer: {a}\nsource: {s}\nsource: {s}\n", False),
        ("answer: {a} {a}\nsource: {s}\n", False),
        ("answer: {a} or 12\nsource: {s}\n", False),
        ("answer: \nsource: {s}\n", False),
        ("answer: {a}\nsource: ./{s}\n", False),
        ("{a}\n{s}\n", False),
        ("", False),
    ],
)
def test_forms_of_the_answer_file(form: str, accepted: bool, tmp_path: Path) -> None:
    task = WORLD.task(T, "hop2")
    question = question_of(task)
    WORLD.set_up(task, tmp_path)
    text = form.format(a=question.answer, A=question.answer.upper(), s=question.source)
    (tmp_path / "answer.txt").write_bytes(text.encode())
    assert (not failed(task, tmp_path)) == accepted


def test_a_unit_after_a_number_does_not_matter_and_another_number_does(tmp_path: Path) -> None:
    seed = next(s for s in range(T, T + 400) if question_of(WORLD.task(s, "compare")).answer.isdigit())
    task = WORLD.task(seed, "compare")
    question = question_of(task)
    WORLD.set_up(task, tmp_path)
    for answer, accepted in ((f"{question.answer} metres", True), (f"1{question.answer}", False), ("m", False)):
        (tmp_path / "answer.txt").write_text(f"answer: {answer}\nsource: {question.source}\n")
        assert (not failed(task, tmp_path)) == accepted, answer


def test_links_and_strange_files_do_not_count(tmp_path: Path) -> None:
    task = WORLD.task(T, "hop1")
    question = question_of(task)
    WORLD.set_up(task, tmp_path)
    right = f"answer: {question.answer}\nsource: {question.source}\n"
    (tmp_path / "elsewhere").write_text(right)
    (tmp_path / "answer.txt").symlink_to("elsewhere")
    assert "answer file" in failed(task, tmp_path)
    (tmp_path / "answer.txt").unlink()
    (tmp_path / "answer.txt").write_text(right)
    assert not failed(task, tmp_path)

    document = tmp_path / question.source
    copy = tmp_path / "copy"
    os.rename(document, copy)
    document.symlink_to(copy)
    assert failed(task, tmp_path) == {"documents unchanged"}
    document.unlink()
    assert failed(task, tmp_path) == {"documents unchanged"}
    os.rename(copy, document)
    assert not failed(task, tmp_path)
    os.rename(tmp_path / "docs", tmp_path / "moved")
    (tmp_path / "docs").symlink_to("moved")
    assert failed(task, tmp_path) == {"documents unchanged"}


@pytest.mark.soak
@pytest.mark.parametrize("first", [0, T])
@pytest.mark.parametrize("effort", EFFORTS)
def test_soak_the_expert_solves_every_task(first: int, effort: Effort, tmp_path: Path) -> None:
    for seed in range(first, first + 300):
        task, workspace = WORLD.task(seed), tmp_path / f"{seed}"
        workspace.mkdir()
        run(task, workspace, effort, seed)
        assert not failed(task, workspace), task


@pytest.mark.soak
def test_soak_no_attack_wins(tmp_path: Path) -> None:
    for seed in range(T, T + 100):
        task = WORLD.task(seed)
        for name, policy in WORLD.attacks(task).items():
            workspace = tmp_path / f"{seed} {name}"
            workspace.mkdir()
            WORLD.set_up(task, workspace)
            play(policy, task, workspace, SANDBOX)
            assert failed(task, workspace), f"{name} won {task}"
