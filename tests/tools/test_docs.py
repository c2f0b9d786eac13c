"""search_docs: BM25 over docs/."""

import os
import time

import pytest


@pytest.fixture
def docs(workspace):
    folder = workspace / "docs"
    (folder / "deep").mkdir(parents=True)
    (folder / "tea.md").write_text("# Green tea\n\nGreen tea is grown in hills. It is steamed, not roasted.\n")
    (folder / "coffee.txt").write_text("Coffee\nCoffee is roasted. Tea is not coffee.\n")
    (folder / "deep/water.md").write_text("## Water ##\nWater boils at 100 degrees, and tea steeps at 80.\n")
    (folder / "image.png").write_bytes(b"tea")
    (folder / "broken.md").write_bytes(b"tea\0tea")
    (folder / "empty.md").touch()
    return folder


def test_form_and_order(ok, docs):
    lines = ok("search_docs", query="tea").split("\n")
    assert lines == [
        "docs/tea.md: Green tea: Green tea is grown in hills. It is steamed, not roasted.",
        "docs/coffee.txt: Coffee: Coffee is roasted. Tea is not coffee.",
        "docs/deep/water.md: Water ##: Water boils at 100 degrees, and tea steeps at 80.",
    ]


def test_the_snippet_is_short_and_around_the_match(ok, docs):
    words = [f"w{i}" for i in range(200)]
    words[100] = "needle"
    (docs / "long.md").write_text("# Long\n" + " ".join(words))
    (line,) = ok("search_docs", query="needle").split("\n")
    assert line.startswith("docs/long.md: Long: ...")
    assert "w99 needle w101" in line
    assert len(line.split()) <= 2 + 12


@pytest.mark.parametrize("query", ["zebra", "zeb*", "title:zebra", '"zebra', "NEAR(zebra, 3)", "zebra - (", "^zebra"])
def test_operators_are_ordinary_words(ok, docs, query):
    assert ok("search_docs", query=query) == "no match"


def test_an_operator_finds_its_word(ok, docs):
    assert ok("search_docs", query="NOT").split(":")[0] == "docs/coffee.txt"


def test_any_word_may_match(ok, docs):
    assert ok("search_docs", query="what boils, zebra?").startswith("docs/deep/water.md: ")


def test_endings_are_folded(ok, docs):
    assert ok("search_docs", query="hill").startswith("docs/tea.md: ")


def test_at_most_five_and_ties_by_path(ok, docs):
    for i in (3, 1, 6, 2, 5, 4):
        (docs / f"same{i}.md").write_text("# Same\nidentical words\n")
    lines = ok("search_docs", query="identical").split("\n")
    assert [line.split(":")[0] for line in lines] == [f"docs/same{i}.md" for i in (1, 2, 3, 4, 5)]


def test_changes_are_seen(ok, docs):
    assert ok("search_docs", query="zebra") == "no match"
    ok("write_file", path="docs/new.md", text="# Zebra\nstriped\n")
    assert ok("search_docs", query="zebra") == "docs/new.md: Zebra: striped"
    ok("edit_file", path="docs/new.md", old="Zebra", new="Horse")  # the same size
    assert ok("search_docs", query="zebra") == "no match"
    (docs / "new.md").unlink()
    assert ok("search_docs", query="horse") == "no match"


def test_no_docs(bad, workspace):
    assert bad("search_docs", query="tea") == "search_docs: there is no folder docs here. Use find_text"
    (workspace / "docs").symlink_to("/usr/share/doc")
    assert bad("search_docs", query="tea") == "search_docs: there is no folder docs here. Use find_text"


def test_an_empty_query(bad, docs):
    assert bad("search_docs", query=" - ") == "search_docs: query must hold a word"


def test_links_out_of_docs_are_not_read(ok, docs, tmp_path):
    (tmp_path / "secret.md").write_text("# Secret\nzebra\n")
    (docs / "secret.md").symlink_to(tmp_path / "secret.md")
    (docs / "folder").symlink_to(tmp_path)
    assert ok("search_docs", query="zebra") == "no match"


def test_a_large_folder_is_fast_once_indexed(ok, docs):
    for i in range(400):
        (docs / f"{i}.md").write_text(f"# Document {i}\n" + f"word{i} filler " * 50)
    ok("search_docs", query="word7")
    started_s = time.perf_counter()
    assert ok("search_docs", query="word123").startswith("docs/123.md: Document 123: ")
    assert time.perf_counter() - started_s < 0.2, "the index was built again"
    assert os.path.exists(docs / "0.md")
