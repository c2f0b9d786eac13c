"""Copies of a user's folder: what is left out and refused, diffs that `patch` takes, writing back all or nothing."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec
import pytest

from longstep.agent import folders
from longstep.agent.folders import apply, changes, copy_folder, snapshot, unified
from longstep.agent.journal import Blobs
from longstep.errors import UserError


@pytest.fixture
def source(tmp_path) -> Path:
    """A folder with what real ones have: subfolders, a binary file, links, version control, caches."""
    folder = tmp_path / "mine"
    (folder / "pkg/deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (folder / "pkg/b.py").write_bytes(b"x = 1\r\ny = 2")
    (folder / "pkg/deep/c.bin").write_bytes(bytes(range(256)))
    (folder / "run.sh").write_text("echo hi\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "inner").symlink_to("pkg/b.py")
    (folder / "outer").symlink_to(tmp_path)
    for name in (".git", "__pycache__", "pkg/node_modules"):
        (folder / name).mkdir()
        (folder / name / "junk").write_text("junk")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def blobs(tmp_path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def test_copy_says_what_it_leaves_out(source, tmp_path):
    copied = copy_folder(source, tmp_path / "copy")
    assert copied.left_out == (".git", "__pycache__", "outer", "pipe", "pkg/node_modules")
    names = sorted(str(p.relative_to(tmp_path / "copy")) for p in (tmp_path / "copy").rglob("*"))
    assert names == ["a.txt", "empty", "inner", "pkg", "pkg/b.py", "pkg/deep", "pkg/deep/c.bin", "run.sh"]
    assert (tmp_path / "copy/pkg/deep/c.bin").read_bytes() == bytes(range(256))
    assert (tmp_path / "copy/run.sh").stat().st_mode & 0o777 == 0o755
    assert os.readlink(tmp_path / "copy/inner") == "pkg/b.py"


def test_links_in_a_circle_and_names_that_are_not_utf_8_are_left_out(tmp_path, blobs):
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "round").symlink_to("round")
    (folder / os.fsdecode(b"caf\xe9")).write_text("x")
    (folder / "bent").symlink_to(os.fsdecode(b"caf\xe9"))
    assert copy_folder(folder, tmp_path / "copy").left_out == ("bent", "caf\ufffd")
    assert msgspec.json.encode(snapshot(folder, blobs))
    assert list(snapshot(folder, blobs)) == ["round"]


@pytest.mark.parametrize(("bound", "value"), [("MAX_BYTES", 200), ("MAX_FILES", 3)])
def test_a_large_folder_is_refused_before_anything_is_copied(source, tmp_path, monkeypatch, bound, value):
    monkeypatch.setattr(folders, bound, value)
    with pytest.raises(UserError, match=r"a run works on a copy; give the part"):
        copy_folder(source, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_runs_kept_inside_the_folder_are_not_copied(source, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSTEP_HOME", str(source / "home"))
    (source / "home/runs/1/workspace").mkdir(parents=True)
    assert "home/runs" in copy_folder(source, source / "home/runs/2").left_out


def _edit(copy: Path) -> None:
    (copy / "a.txt").write_text("one\n2\nthree")  # a changed line, and no newline at the end
    (copy / "pkg/b.py").write_bytes(b"x = 1\r\ny = 3\r\n")
    (copy / "new dir").mkdir()
    (copy / "new dir/\u00e4.txt").write_text("new\n")
    (copy / "pkg/deep/c.bin").write_bytes(b"\0\1")
    (copy / "run.sh").unlink()
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__/x.pyc").write_bytes(b"no change of the user's")


@pytest.mark.skipif(shutil.which("patch") is None, reason="the program `patch` is not installed")
def test_diff_is_what_patch_takes(source, blobs, tmp_path):
    copy = tmp_path / "copy"
    copy_folder(source, copy)
    before = snapshot(copy, blobs)
    assert changes(before, snapshot(copy, blobs)) == ()
    _edit(copy)
    found = changes(before, snapshot(copy, blobs))
    assert [c.path for c in found] == ["a.txt", "new dir/\u00e4.txt", "pkg/b.py", "pkg/deep/c.bin", "run.sh"]
    diff = unified(found, blobs)
    assert "binary file pkg/deep/c.bin differs" in diff
    assert "\\ No newline at end of file" in diff

    again = tmp_path / "again"
    copy_folder(source, again)
    subprocess.run(["patch", "-p1", "--binary", "-d", again], input=diff.encode(), check=True, capture_output=True)
    for name in ("a.txt", "pkg/b.py", "new dir/\u00e4.txt"):
        assert (again / name).read_bytes() == (copy / name).read_bytes(), name
    assert not (again / "run.sh").exists()


def test_modes_and_links_are_changes(source, blobs, tmp_path):
    copy = tmp_path / "copy"
    copy_folder(source, copy)
    before = snapshot(copy, blobs)
    (copy / "a.txt").chmod(0o755)
    (copy / "inner").unlink()
    (copy / "inner").symlink_to("a.txt")
    found = changes(before, snapshot(copy, blobs))
    diff = unified(found, blobs)
    assert "mode of a.txt: 644 -> 755" in diff
    assert "-link to pkg/b.py\n+link to a.txt" in diff
    apply(found, source, blobs)
    assert (source / "a.txt").stat().st_mode & 0o777 == 0o755
    assert os.readlink(source / "inner") == "a.txt"


def _tree(folder: Path) -> dict[str, bytes | str]:
    return {
        str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in folder.rglob("*")
        if p.is_symlink() or p.is_file()
    }


def test_apply_writes_every_change_and_nothing_else(source, blobs, tmp_path):
    copy = tmp_path / "copy"
    copy_folder(source, copy)
    before = snapshot(copy, blobs)
    _edit(copy)
    untouched = {k: v for k, v in _tree(source).items() if k in (".git/junk", "outer", "inner", "__pycache__/junk")}
    apply(changes(before, snapshot(copy, blobs)), source, blobs)
    after = _tree(source)
    assert after.items() >= untouched.items()
    assert {k: v for k, v in after.items() if k in _tree(copy)} == {
        k: v for k, v in _tree(copy).items() if k != "__pycache__/x.pyc"
    }
    assert not (source / "run.sh").exists()
    assert not list(source.rglob("*.longstep"))


@pytest.mark.parametrize("meanwhile", ["edited", "deleted", "created", "became a folder", "parent is a link"])
def test_apply_refuses_if_the_original_changed(source, blobs, tmp_path, meanwhile):
    copy = tmp_path / "copy"
    copy_folder(source, copy)
    before = snapshot(copy, blobs)
    _edit(copy)
    found = changes(before, snapshot(copy, blobs))
    if meanwhile == "edited":
        (source / "a.txt").write_text("mine")
    elif meanwhile == "deleted":
        (source / "a.txt").unlink()
    elif meanwhile == "created":
        (source / "new dir").mkdir()
        (source / "new dir/\u00e4.txt").write_text("mine too")
    elif meanwhile == "became a folder":
        (source / "a.txt").unlink()
        (source / "a.txt").mkdir()
    else:
        (tmp_path / "elsewhere").mkdir()
        (source / "new dir").symlink_to(tmp_path / "elsewhere")
    kept = _tree(source)
    with pytest.raises(UserError, match="since the run began, so nothing was written"):
        apply(found, source, blobs)
    assert _tree(source) == kept


def test_apply_writes_no_link_that_leads_outside(source, blobs, tmp_path):
    copy = tmp_path / "copy"
    copy_folder(source, copy)
    before = snapshot(copy, blobs)
    (copy / "a.txt").write_text("changed")
    for target in ("/etc/passwd", "../../etc/passwd"):
        (copy / "pkg/evil").unlink(missing_ok=True)
        (copy / "pkg/evil").symlink_to(target)
        kept = _tree(source)
        with pytest.raises(UserError, match="pkg/evil: a link that leads out of"):
            apply(changes(before, snapshot(copy, blobs)), source, blobs)
        assert _tree(source) == kept


def test_a_failed_write_leaves_the_folder_as_it_was(source, blobs, tmp_path):
    """Staging fails at the second file (its folder cannot be made): the first has not been replaced."""
    copy = tmp_path / "copy"
    copy_folder(source, copy)
    before = snapshot(copy, blobs)
    (copy / "a.txt").write_text("changed")
    shutil.rmtree(copy / "empty")
    (copy / "run.sh").unlink()
    (copy / "run.sh").mkdir()
    (copy / "run.sh/x").write_text("a folder in the place of a file")
    kept = _tree(source)
    with pytest.raises(UserError, match=r"run\.sh"):
        apply(changes(before, snapshot(copy, blobs)), source, blobs)
    assert _tree(source) == kept
    assert not list(source.rglob("*.longstep"))


def test_what_cannot_be_read_is_seen_and_not_written_back(blobs):
    """As a user who is not root: an agent may have shut a file or a folder."""
    source = Path(tempfile.mkdtemp(prefix="longstep-test-"))
    try:
        (source / "folder").mkdir()
        for name in ("a.txt", "folder/b.txt"):
            (source / name).write_text("text\n")
        before = snapshot(source, blobs)
        (source / "a.txt").chmod(0)
        (source / "folder").chmod(0)
        source.chmod(0o755)
        user = os.geteuid()
        os.seteuid(user or 65534)
        try:
            after = snapshot(source, blobs)
        finally:
            os.seteuid(user)
        assert after == {"a.txt": folders.File(mode=0)}
        found = changes(before, after)
        assert "mode of a.txt: 644 -> 0\nbinary file a.txt differs" in unified(found, blobs)
        (source / "folder").chmod(0o755)
        with pytest.raises(UserError, match=r"a\.txt: cannot be read any more"):
            apply(found, source, blobs)
        assert (source / "folder/b.txt").exists()
    finally:
        (source / "folder").chmod(0o755)
        shutil.rmtree(source)
