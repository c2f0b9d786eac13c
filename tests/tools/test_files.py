"""list_files, read_file, write_file, edit_file, find_text: result forms and edge cases."""

import os
import subprocess

import pytest

from longstep.tools import paths

# --- list_files -------------------------------------------------------------------------------------------------------


def test_list(ok, workspace):
    (workspace / "b").mkdir()
    (workspace / "a.txt").write_text("12345")
    (workspace / ".hidden").touch()
    (workspace / "link").symlink_to("a.txt")
    os.mkfifo(workspace / "pipe")
    assert ok("list_files") == ".hidden  0\na.txt  5\nb/\nlink -> a.txt\npipe  0"
    assert ok("list_files", path="b") == "(empty)"
    assert ok("list_files", path="b/..") == ok("list_files", path=str(workspace)) == ok("list_files", path=".")


def test_list_errors(bad, workspace):
    (workspace / "a.txt").touch()
    assert bad("list_files", path="a.txt") == "a.txt: a file, not a folder. Use read_file"
    assert bad("list_files", path="nowhere") == "nowhere: no such folder. Use list_files of ."


def test_list_many(ok, workspace):
    for i in range(100):
        (workspace / f"{i:03}").touch()
    lines = ok("list_files").split("\n")
    assert len(lines) == 61
    assert lines[40] == "... 40 lines left out ..."
    assert lines[41] == "080  0"


def test_list_a_name_that_is_no_text(ok, workspace):
    (workspace / "bad\udcff").touch()
    assert ok("list_files") == "bad?  0"


# --- read_file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", "(empty)"),
        (b"\n", "1| "),
        (b"a", "1| a"),
        (b"a\n", "1| a"),
        (b"a\n\nb", "1| a\n2| \n3| b"),
        (b"a\r\nb\r\n", "1| a\n2| b"),
        (b"a\x0cb\xe2\x80\xa8c\rd\n", "1| a\x0cb\u2028c\rd"),  # only "\n" ends a line, as in grep, pytest and editors
        ("ünï\n".encode(), "1| ünï"),
        (b"\xff\xfe\n", "1| \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_read(ok, workspace, data, shown):
    (workspace / "file").write_bytes(data)
    assert ok("read_file", path="file") == shown


def test_read_a_part(ok, bad, workspace):
    (workspace / "file").write_text("".join(f"line {i}\n" for i in range(1, 101)))
    assert ok("read_file", path="file", start=3, lines=2) == "3| line 3\n4| line 4\n(lines 3-4 of 100)"
    assert ok("read_file", path="file", start=99, lines=9) == "99| line 99\n100| line 100"
    assert ok("read_file", path="file").split("\n")[-2:] == ["60| line 60", "(lines 1-60 of 100)"]
    assert bad("read_file", path="file", start=101) == "file: has 100 lines; start must be from 1 to 100"
    assert bad("read_file", path="file", start=0) == "file: has 100 lines; start must be from 1 to 100"
    assert bad("read_file", path="file", lines=0) == "file: lines must be 1 or more"


def test_read_at_most_200_lines_and_says_so(ok, workspace):
    (workspace / "file").write_text("x\n" * 1000)
    assert ok("read_file", path="file", lines=10**9).endswith("200| x\n(lines 1-200 of 1000)")


def test_read_a_long_line(ok, workspace):
    (workspace / "file").write_text("x" * 1000)
    assert "... 600 characters left out ..." in ok("read_file", path="file")


def test_read_errors(bad, workspace):
    (workspace / "folder").mkdir()
    (workspace / "binary").write_bytes(b"ab\0cd")
    (workspace / "shut").touch(mode=0o000)
    os.mkfifo(workspace / "pipe")
    with open(workspace / "huge", "wb") as file:
        file.truncate(17 << 20)
    assert bad("read_file", path="nowhere") == "nowhere: no such file. Use list_files to see what is there"
    assert bad("read_file", path="binary/x") == "binary/x: no such file. Use list_files to see what is there"
    assert bad("read_file", path="folder") == "folder: a folder, not a file. Use list_files"
    assert bad("read_file", path=".") == ".: a folder, not a file. Use list_files"
    assert bad("read_file", path="binary") == "binary: binary file, 5 bytes"
    assert bad("read_file", path="pipe") == "pipe: not a regular file"
    assert bad("read_file", path="shut") == "shut: permission denied: not readable"
    assert bad("read_file", path="huge") == "huge: 17825792 bytes is too large. Use shell with head, tail or grep"


# --- write_file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "lines"), [("", 0), ("a", 1), ("a\n", 1), ("a\nb", 2), ("\n\n", 2), ("ü\r\n", 1)])
def test_write(ok, workspace, text, lines):
    assert ok("write_file", path="a/b/c.txt", text=text) == f"wrote a/b/c.txt, {lines} lines"
    assert (workspace / "a/b/c.txt").read_bytes() == text.encode()


def test_write_over_a_longer_file_keeps_its_mode(ok, workspace):
    file = workspace / "run.sh"
    file.write_text("long " * 100)
    file.chmod(0o750)
    ok("write_file", path="run.sh", text="short")
    assert file.read_text() == "short"
    assert file.stat().st_mode & 0o777 == 0o750


def test_write_errors(bad, workspace):
    (workspace / "folder").mkdir()
    (workspace / "file").write_text("kept")
    (workspace / "fixed").write_text("kept")
    (workspace / "fixed").chmod(0o444)
    (workspace / "sealed").mkdir(mode=0o555)
    os.mkfifo(workspace / "pipe")
    assert bad("write_file", path="folder", text="") == "folder: a folder, not a file. Give the path of a file"
    assert bad("write_file", path="new/", text="") == "new: a folder, not a file. Give the path of a file"
    assert bad("write_file", path=".", text="") == ".: a folder, not a file. Give the path of a file"
    assert bad("write_file", path="", text="") == ".: a folder, not a file. Give the path of a file"
    assert bad("write_file", path="file/x", text="") == "file/x: a part of the path is a file, not a folder"
    assert bad("write_file", path="fixed", text="") == "fixed: permission denied: read-only"
    assert bad("write_file", path="sealed/x", text="") == "sealed/x: permission denied: its folder is read-only"
    assert bad("write_file", path="pipe", text="x") == "pipe: not a regular file"
    assert bad("write_file", path="x" * 300, text="").endswith("File name too long")
    assert "surrogates" in bad("write_file", path="file", text="\ud800")
    assert (workspace / "file").read_text() == (workspace / "fixed").read_text() == "kept"


# --- edit_file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "old", "new", "after", "line"),
    [
        (b"a\nb\nc\n", "b", "x", b"a\nx\nc\n", 2),
        (b"a\nb\nc\n", "b\nc", "x", b"a\nx\n", 2),
        (b"a\nb\nc\n", "a\n", "", b"b\nc\n", 1),
        (b"a\nb", "b", "b\n", b"a\nb\n", 2),
        (b"a\r\nb\r\nc\r\n", "b\nc", "x\ny", b"a\r\nx\r\ny\r\nc\r\n".replace(b"c\r\n", b""), 2),
        (b"a\r\nb\nc\n", "b\nc", "x", b"a\r\nx\n", 2),
        ("ä ö\n".encode(), "ö", "ü", "ä ü\n".encode(), 1),
        (b"\xff a\n", "a", "b", b"\xff b\n", 1),  # bytes that are no text stay as they are
        (b"x = 1\n", "x = 1", "\\1 \\g<0>", b"\\1 \\g<0>\n", 1),  # no patterns
    ],
)
def test_edit(ok, workspace, before, old, new, after, line):
    (workspace / "file").write_bytes(before)
    assert ok("edit_file", path="file", old=old, new=new) == f"edited file, line {line}"
    assert (workspace / "file").read_bytes() == after


def test_edit_errors(bad, workspace):
    (workspace / "file").write_text("a b a\n")
    (workspace / "empty").touch()
    (workspace / "fixed").write_text("a")
    (workspace / "fixed").chmod(0o444)
    assert bad("edit_file", path="file", old="a", new="x") == (
        "file: old occurs 2 times. Give more of the text around it"
    )
    assert bad("edit_file", path="file", old="c", new="x") == (
        "file: old is not in the file. Read it and copy the text exactly"
    )
    assert bad("edit_file", path="empty", old="c", new="x").startswith("empty: old is not in the file")
    assert bad("edit_file", path="file", old="", new="x").startswith("edit_file: old is empty")
    assert bad("edit_file", path="file", old="b", new="b") == "edit_file: old and new are the same. Nothing to do"
    assert bad("edit_file", path="nowhere", old="b", new="c").startswith("nowhere: no such file")
    assert bad("edit_file", path="fixed", old="a", new="c") == "fixed: permission denied: read-only"
    assert (workspace / "file").read_text() == "a b a\n"


# --- find_text --------------------------------------------------------------------------------------------------------


def test_find(ok, bad, workspace):
    (workspace / "b").mkdir()
    (workspace / "b/two.txt").write_text("nothing\n  x.y here\r\n")
    (workspace / "a.txt").write_text("x.y\nxzy\n")
    (workspace / "binary").write_bytes(b"x.y\0")
    (workspace / ".git").mkdir()
    (workspace / ".git/config").write_text("x.y")
    (workspace / "link").symlink_to("a.txt")
    os.mkfifo(workspace / "pipe")
    assert ok("find_text", text="x.y") == "a.txt:1: x.y\nb/two.txt:2: x.y here"
    assert ok("find_text", text="x.y", path="b") == "b/two.txt:2: x.y here"
    assert ok("find_text", text="x.y", path="b/two.txt") == "b/two.txt:2: x.y here"
    assert ok("find_text", text="X.Y") == "no match"
    assert bad("find_text", text="x.y", path="c").startswith("c: no such file or folder")
    assert bad("find_text", text="") == "find_text: text must be a part of one line, not empty"
    assert bad("find_text", text="a\nb") == "find_text: text must be a part of one line, not empty"


def test_find_many(ok, workspace):
    (workspace / "file").write_text("hit\n" * 45)
    lines = ok("find_text", text="hit").split("\n")
    assert lines[-2:] == ["file:40: hit", "(5 more)"]
    assert len(lines) == 41


def test_find_in_more_than_can_be_read(ok, bad, workspace):
    """Sparse files cost no disk; a search through them would not end."""
    for i in range(20):
        with open(workspace / str(i), "wb") as file:
            file.truncate(15 << 20)
    assert bad("find_text", text="a") == "300 MiB of files is too much to search. Give a path, or use shell"
    assert ok("find_text", text="a", path="3") == "no match"


def test_find_below_folders_deeper_than_python_recurses(ok, workspace):
    """Deep folders are not looked into; what is beside them is found."""
    folder = os.open(workspace, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    (workspace / "d/d/file").write_text("needle\n")
    assert ok("find_text", text="needle") == "d/d/file:1: needle"
    subprocess.run(["rm", "-rf", workspace / "d"], check=True)  # which shutil cannot


# --- ways out ---------------------------------------------------------------------------------------------------------

WRITES = {"write_file": {"text": "x"}, "edit_file": {"old": "secret", "new": "x"}}
READS = {"read_file": {}, "find_text": {"text": "secret"}, "list_files": {}, "run_tests": {}}


@pytest.fixture
def outside(workspace):
    """A folder beside the workspace with a file, and links to both inside."""
    folder = workspace.parent / "outside"
    folder.mkdir()
    (folder / "file.txt").write_text("secret\n")
    (workspace / "file-link").symlink_to(folder / "file.txt")
    (workspace / "folder-link").symlink_to(folder)
    (workspace / "relative-link").symlink_to("../outside")
    (workspace / "chain").symlink_to("folder-link")
    (workspace / "dangling").symlink_to(folder / "new")
    (workspace / "work2").symlink_to(str(workspace) + "2")
    return folder


@pytest.mark.parametrize("tool", [*WRITES, *READS])
@pytest.mark.parametrize(
    "path",
    ["..", "../outside/file.txt", "a/../../outside", "/etc/passwd", "/", "file-link", "folder-link/file.txt", "chain",
     "relative-link/file.txt", "dangling", "{w}/../outside/file.txt", "{w}2", "work2", "~root/../../../etc/passwd"],
)  # fmt: skip
def test_no_way_out(call, workspace, outside, tool, path):
    output = call(tool, path=path.format(w=workspace), **(WRITES | READS)[tool])
    assert "secret" not in output.text
    if not path.startswith("~"):
        assert output.is_error
        assert "outside the workspace" in output.text
    assert (outside / "file.txt").read_text() == "secret\n"
    assert os.listdir(outside) == ["file.txt"]


def test_links_inside_are_followed(ok, workspace):
    (workspace / "real").mkdir()
    (workspace / "link").symlink_to("real")
    (workspace / "absolute").symlink_to(workspace / "real")
    ok("write_file", path="link/file", text="a\n")
    assert ok("read_file", path="absolute/file") == "1| a"
    assert ok("find_text", text="a", path="link") == "real/file:1: a"


@pytest.mark.parametrize("use", ["read", "write"])
@pytest.mark.parametrize("part", ["file", "folder"])
def test_a_link_swapped_in_after_the_check_is_refused(workspace, outside, part, use, monkeypatch):
    """The file or its folder becomes a link out between the check of the path and its use."""
    (workspace / "folder").mkdir()
    (workspace / "folder/file.txt").write_text("mine\n")
    check = paths.inside

    def check_then_swap(root, path):
        answer = check(root, path)
        if part == "file":
            (workspace / "folder/file.txt").unlink()
            (workspace / "folder/file.txt").symlink_to(outside / "file.txt")
        else:
            (workspace / "folder").rename(workspace / "moved")
            (workspace / "folder").symlink_to(outside)
        return answer

    monkeypatch.setattr(paths, "inside", check_then_swap)
    arguments = (workspace, "folder/file.txt", b"bad")
    with pytest.raises((OSError, paths.ToolMistake)):
        paths.read_bytes(*arguments[:2]) if use == "read" else paths.write_bytes(*arguments)
    assert (outside / "file.txt").read_text() == "secret\n"
