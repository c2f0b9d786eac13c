"""The corpus: only permissive text that people wrote, each once, with a manifest that says what it is."""

import gzip
import hashlib
import json
import sysconfig
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from longstep.errors import UserError
from longstep.train.corpus import build_corpus, documents, html_text, is_source, licence_of


def code(name, num_lines=30):
    """Ordinary source, different for each name."""
    return f'"""Module {name}."""\n\n' + "".join(
        f"def {name}_{chr(97 + i % 26)}{i}(value):\n    return {name}_helper(value, option_{name}={i})\n\n"
        for i in range(num_lines)
    )


def install(site, name, files, **metadata):
    """A distribution as pip leaves it."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0"]
    for key, value in metadata.items():
        for one in value if isinstance(value, list) else [value]:
            lines.append(f"{key.replace('_', '-')}: {one}")
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    return PathDistribution(info)


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site-packages"
    install(folder, "good", {"good/a.py": code("alpha"), "good/b.py": code("beta")}, License_Expression="MIT")
    install(folder, "viral", {"viral/a.py": code("gamma")}, License_Expression="GPL-3.0-only")
    install(folder, "silent", {"silent/a.py": code("delta")})
    return folder


def build(tmp_path, *roots, docs=(), max_bytes=1 << 20, out="corpus"):
    manifest = build_corpus(tmp_path / out, python_roots=roots, docs=docs, max_bytes=max_bytes)
    assert json.loads((tmp_path / out / "manifest.json").read_text()) == manifest
    return manifest, list(documents(tmp_path / out))


def test_permissive_distributions_and_no_others(tmp_path, site):
    manifest, texts = build(tmp_path, site)
    assert sorted(texts) == sorted([code("alpha").strip("\n") + "\n", code("beta").strip("\n") + "\n"])
    (source,) = manifest["sources"]
    assert (source["name"], source["version"], source["licence"], source["files"]) == ("good", "1.0", "MIT", 2)
    assert source["bytes"] == manifest["bytes"] == sum(len(t.encode()) for t in texts)
    digest = hashlib.sha256()
    for path, name in (("good/a.py", "alpha"), ("good/b.py", "beta")):
        text = (code(name).strip("\n") + "\n").encode()
        digest.update(f"{path}\0{len(text)}\0".encode() + text)
    assert source["sha256"] == digest.hexdigest()
    assert [(d["name"], d["why"]) for d in manifest["left_out"]] == [
        ("silent", "no licence stated"),
        ("viral", "not permissive: GPL-3.0-only"),
    ]


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ({"License_Expression": "MIT OR GPL-2.0-or-later"}, "MIT OR GPL-2.0-or-later"),
        ({"License_Expression": "MIT AND GPL-2.0-or-later"}, None),
        ({"License_Expression": "(MIT OR GPL-2.0-only) AND BSD-3-Clause"}, None),  # not read so deep
        ({"License_Expression": "Apache-2.0 WITH LLVM-exception"}, "Apache-2.0 WITH LLVM-exception"),
        ({"License_Expression": "LicenseRef-Proprietary"}, None),
        ({"License": "BSD 3-Clause License"}, "BSD"),
        ({"License": "new BSD"}, "BSD"),
        ({"License": "Apache License, Version 2.0"}, "Apache-2.0"),
        ({"License": "MPL-2.0 AND MIT"}, None),
        ({"License": "Other/Proprietary"}, None),
        ({"License": "MIT"}, "MIT"),
        ({"Classifier": ["License :: OSI Approved :: MIT License", "Topic :: X"]}, "MIT"),
        ({"Classifier": ["License :: OSI Approved", "License :: OSI Approved :: BSD License"]}, "BSD"),
        ({"Classifier": ["License :: OSI Approved :: GNU General Public License v3 (GPLv3)"]}, None),
        ({"Classifier": ["License :: Free for non-commercial use"]}, None),
        (
            {
                "License": "MIT",
                "Classifier": ["License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)"],
            },
            None,
        ),
        ({}, None),
    ],
    ids=str,
)
def test_licences(tmp_path, metadata, licence):
    got, why_not = licence_of(install(tmp_path, "x", {}, **metadata))
    assert got == licence
    assert (why_not == "") == (licence is not None)


def test_torch_counts_as_bsd(tmp_path):
    dist = install(tmp_path, "torch", {}, License_Expression="BSD-3-Clause AND LicenseRef-Other")
    assert licence_of(dist) == ("BSD-3-Clause", "")


@pytest.mark.parametrize(
    ("head", "taken"),
    [
        ("# MIT licence\n", True),
        ("# This program is distributed under the GNU General Public License\n", False),
        ("# SPDX-License-Identifier: MPL-2.0\n", False),
        ("# This file was automatically generated by make. Do not edit.\n", False),
        ("x = '" + "a" * 1500 + "'\n", False),
        ("TABLE = [\n" + "    0.123456, 1.234567, 2.345678,\n" * 300 + "]\n", False),
        ("\0\n", False),
    ],
    ids=lambda v: str(v)[:30],
)
def test_files_that_no_one_wrote_or_may_be_taken(head, taken):
    assert is_source(head + code("alpha", 10)) == taken


def test_vendored_copied_and_tiny_files_are_dropped(tmp_path):
    site = tmp_path / "site"
    changed = code("alpha").replace("alpha_a0", "alpha_new")  # nearly all of its lines are known
    files = {
        "good/a.py": code("alpha"),
        "good/copy.py": code("alpha") + "\n \n",
        "good/near.py": changed,
        "good/_vendor/v.py": code("beta"),
        "good/tiny.py": "x = 1\n",
        "good/latin.py": code("gamma"),
        "good/data.json": "{}",
        "../outside.py": code("delta"),
    }
    install(site, "good", files, License_Expression="MIT")
    (site / "good/latin.py").write_bytes(b"# \xe9\n" + code("gamma").encode())
    _, texts = build(tmp_path, site)
    assert texts == [code("alpha").strip("\n") + "\n"]


PAGE = """<html><head><title>t</title><style>p {}</style></head><body><nav>menu</nav>
<div class="sphinxsidebar"><p>side <b>bar</p><div>more</div></div>
<h1>Shelves<a class="headerlink" href="#s">¶</a></h1>
<p>A <em>shelf</em> is
a persistent &amp; simple dictionary, number NUMBER of many; the text goes on for a while here.</p>
<pre>for x in y:
    print(x)</pre><ul><li><p>one</p></li><li>two</ul><script>var x;</script></body></html>"""


def test_html_becomes_text():
    assert html_text(PAGE) == (
        "# Shelves\n\nA shelf is a persistent & simple dictionary, number NUMBER of many; the text goes on for a while "
        "here.\n\nfor x in y:\n    print(x)\n\n- one\n\n- two\n"
    )


def test_documentation_without_menus_and_repeated_lines(tmp_path):
    docs = tmp_path / "doc"
    words = ["shelf", "dictionary", "pickle", "socket", "thread", "queue", "logger", "parser", "module", "object"] * 2
    for i, word in enumerate(words):
        page = docs / "python3.11" / "html" / f"{i:02}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        body = "".join(f"<p>Sentence {k} of page {i} says that a {word} is useful.</p>" for k in range(8))
        page.write_text(f"<html><body><p>Short menu</p><p>The same long line stands on each of the pages.</p>{body}")
    (docs / "python3.11/html/genindex.html").write_text("<p>" + "index " * 100)
    (docs / "python3.11/html/_sources").mkdir()
    (docs / "python3.11/html/_sources/x.html").write_text("<p>" + "source " * 100)
    (docs / "python3.11-doc").mkdir()
    with gzip.open(docs / "python3.11-doc/changelog.Debian.gz", "wt") as log:
        log.write("python3.11 (3.11.2-6) bookworm; urgency=medium\n")
    (docs / "unlisted").mkdir()
    (docs / "unlisted/index.html").write_text("<p>" + "no licence known " * 100)

    manifest, texts = build(tmp_path, docs=[docs])
    (source,) = manifest["sources"]
    assert (source["name"], source["version"], source["licence"]) == ("python3.11-doc", "3.11.2-6", "PSF-2.0")
    assert source["files"] == len(texts) == 20
    assert all("menu" not in t and "same long line" not in t and t.startswith("Sentence 0") for t in texts)


def test_the_largest_sources_give_way(tmp_path):
    site = tmp_path / "site"
    install(site, "small", {"small/a.py": code("alpha", 5)}, License_Expression="MIT")
    many = {f"large/{i}.py": code(f"name{chr(97 + i)}", 20) for i in range(20)}
    install(site, "large", many, License_Expression="MIT")
    whole, _ = build(tmp_path, site)
    half, texts = build(tmp_path, site, max_bytes=whole["bytes"] // 2, out="half")
    assert half["bytes"] <= whole["bytes"] // 2
    assert half["bytes"] > whole["bytes"] // 2 - 2000, "less than a document is lost"
    assert {s["name"]: s["files"] for s in half["sources"]}["small"] == 1
    assert len(texts) == half["files"]


def test_the_same_text_gives_the_same_corpus(tmp_path, site):
    first, _ = build(tmp_path, site)
    second, _ = build(tmp_path, site, out="again")
    assert first == second


def test_the_standard_library_is_recognised(tmp_path):
    """A part of the real one: what it gives is Python, each file once."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    part = tmp_path / "python3.99"
    part.mkdir()
    for name in ("abc", "argparse", "textwrap", "shlex", "keyword", "this"):
        (part / f"{name}.py").write_bytes((stdlib / f"{name}.py").read_bytes())
    manifest, texts = build(tmp_path, part)
    (source,) = manifest["sources"]
    assert (source["name"], source["version"], source["licence"]) == ("cpython", "3.99", "PSF-2.0")
    assert any("class ArgumentParser" in t for t in texts)
    for text in texts:
        compile(text, "corpus", "exec")


def test_what_cannot_be(tmp_path, site):
    with pytest.raises(UserError, match="no text to learn from"):
        build(tmp_path, tmp_path / "none")
    build(tmp_path, site)
    with pytest.raises(UserError, match="already holds a corpus"):
        build(tmp_path, site)
    shard = tmp_path / "corpus" / "shard-0000.jsonl"
    shard.write_bytes(shard.read_bytes().replace(b"alpha", b"ALPHA"))
    with pytest.raises(UserError, match="not the shard that the manifest describes"):
        list(documents(tmp_path / "corpus"))
    with pytest.raises(UserError, match="holds no corpus"):
        list(documents(tmp_path / "none"))
