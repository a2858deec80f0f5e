import json
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.errors import UsageError
from rampcli.files.guarded_folder import (
    MARKER,
    GuardedFolder,
    open_to_read,
    read_content,
    replace_file,
    write_json,
)


@pytest.fixture
def own(tmp_path):
    folder = GuardedFolder(tmp_path / "own")
    folder.claim()
    return folder


@pytest.fixture
def outside(tmp_path):
    """A folder that rampcli does not own. It must stay unchanged."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("precious")
    yield folder
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("file", "precious")]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_replacing_a_file_leaves_no_other_file_behind(tmp_path):
    for text in ("first", "second"):
        replace_file(tmp_path / "file", text)
        assert (tmp_path / "file").read_text(encoding="utf-8") == text
    assert names(tmp_path) == ["file"]


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path):
    replace_file(tmp_path / "file", "first")
    with pytest.raises(UnicodeEncodeError):
        replace_file(tmp_path / "file", "second \ud800")
    with pytest.raises(TypeError):
        write_json(tmp_path / "file", {"third": object()})
    assert (tmp_path / "file").read_text(encoding="utf-8") == "first"
    assert names(tmp_path) == ["file"]


@given(
    content=st.dictionaries(
        st.text(max_size=4),
        st.integers() | st.text(max_size=8) | st.lists(st.booleans(), max_size=3),
        max_size=4,
    )
)
def test_json_is_read_back_unchanged(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "content.json"
    write_json(path, content)
    assert json.loads(path.read_text(encoding="utf-8")) == content


def test_a_new_or_empty_folder_is_claimed_and_may_then_hold_anything(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "deep" / "new"):
        folder = GuardedFolder(path)
        assert not folder.is_claimed()
        folder.claim()
        (path / "file").touch()
        folder.claim()
        assert folder.is_claimed()


@pytest.mark.parametrize(
    "marker", [None, "", "{", '{"kind": "corpus build", "format": 1}', "[" * 4000, "x" * 10_000]
)
def test_a_nonempty_folder_without_the_marker_is_refused_and_not_changed(outside, marker):
    if marker is not None:
        (outside / MARKER).write_text(marker)
    with pytest.raises(UsageError, match="not empty, and rampcli did not make it"):
        GuardedFolder(outside).claim()
    if marker is not None:
        assert (outside / MARKER).read_text() == marker
        (outside / MARKER).unlink()


def test_a_file_where_a_folder_is_needed_is_refused(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UsageError, match="is not a folder"):
        GuardedFolder(tmp_path / "file").claim()


def test_a_marker_that_is_a_link_does_not_claim_a_folder(own, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / MARKER).symlink_to(own.marker)
    assert not GuardedFolder(tmp_path / "theirs").is_claimed()


def test_the_folder_itself_may_be_reached_through_a_link(own, tmp_path):
    (tmp_path / "link").symlink_to(own.path)
    GuardedFolder(tmp_path / "link").replace(tmp_path / "link" / "file", "text")
    assert (own.path / "file").read_text() == "text"


WRITERS = {
    "open": lambda own, path: os.close(own.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)),
    "append": lambda own, path: own.open_to_append(path).close(),
}
INSIDE = {
    **WRITERS,
    "replace": lambda own, path: own.replace(path, "text"),
    "make folder": lambda own, path: own.make_folder(path),
    "rename": lambda own, path: own.rename(path, path.with_name("new")),
    "remove file": lambda own, path: own.remove_file(path),
    "remove tree": lambda own, path: own.remove_tree(path),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_link_where_a_file_is_needed_is_refused(own, outside, writer):
    for name, target in (("link", outside / "file"), ("dangling", outside / "new")):
        (own.path / name).symlink_to(target)
        with pytest.raises(UsageError, match="is a symbolic link"):
            WRITERS[writer](own, own.path / name)


@pytest.mark.parametrize("action", INSIDE)
def test_a_link_where_a_folder_is_needed_is_refused(own, outside, action):
    (own.path / "folder").symlink_to(outside)
    with pytest.raises(UsageError, match="folder is a symbolic link"):
        INSIDE[action](own, own.path / "folder" / "file")


def test_a_link_where_a_folder_is_to_be_created_is_refused(own, outside):
    (own.path / "folder").symlink_to(outside)
    with pytest.raises(UsageError, match="folder is a symbolic link"):
        own.make_folder(own.path / "folder")


def test_replacing_or_removing_a_link_keeps_its_target(own, outside):
    for name in ("replaced", "removed", "tree"):
        (own.path / name).symlink_to(outside / "file" if name != "tree" else outside)
    own.replace(own.path / "replaced", "text")
    own.remove_file(own.path / "removed")
    own.remove_tree(own.path / "tree")
    assert names(own.path) == [MARKER, "replaced"]
    assert not (own.path / "replaced").is_symlink()


def test_removing_a_tree_removes_its_links_and_keeps_their_targets(own, outside):
    own.make_folder(own.path / "tree" / "inner")
    (own.path / "tree" / "inner" / "link").symlink_to(outside)
    own.remove_tree(own.path / "tree")
    own.remove_tree(own.path / "tree")
    assert names(own.path) == [MARKER]


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_that_is_not_regular_is_refused_without_waiting(own, writer):
    os.mkfifo(own.path / "fifo")
    (own.path / "folder").mkdir()
    for name in ("fifo", "folder"):
        with pytest.raises((UsageError, IsADirectoryError)):
            WRITERS[writer](own, own.path / name)


def test_reading_refuses_files_that_are_not_regular_and_never_waits(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            open_to_read(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_content(path=tmp_path.joinpath("/dev/zero"), most_bytes=10)


def test_reading_stops_at_the_size_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_content(tmp_path / "file", most_bytes=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4 bytes"):
        read_content(tmp_path / "file", most_bytes=4)


def test_threads_can_claim_one_folder_at_the_same_time(tmp_path):
    failures = []
    for number in range(20):
        folder = GuardedFolder(tmp_path / str(number))
        barrier = threading.Barrier(4)

        def claim(folder=folder, barrier=barrier):
            barrier.wait()
            try:
                folder.claim()
                (folder.path / "lock").touch()
            except UsageError as error:
                failures.append(error)

        threads = [threading.Thread(target=claim) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert names(folder.path) == [MARKER, "lock"]
    assert failures == []


def test_a_file_is_copied_piece_by_piece_and_never_through_a_link(tmp_path):
    folder, source = GuardedFolder(tmp_path / "own"), tmp_path / "source"
    folder.claim()
    source.write_bytes(bytes(range(256)) * 10_000)
    with source.open("rb") as file:
        folder.replace(folder.path / "copy", file)
    assert (folder.path / "copy").read_bytes() == source.read_bytes()
    (folder.path / "link").symlink_to(tmp_path)
    with source.open("rb") as file, pytest.raises(UsageError, match="symbolic link"):
        folder.replace(folder.path / "link" / "copy", file)


@pytest.mark.parametrize("write", [replace_file, write_json])
def test_a_link_that_the_user_names_is_neither_followed_nor_replaced(tmp_path, write):
    (tmp_path / "target").write_text("mine")
    (tmp_path / "link").symlink_to("target")
    with pytest.raises(UsageError, match="link is a symbolic link") as refused:
        write(tmp_path / "link", {} if write is write_json else "")
    assert refused.value.remedy == f"{tmp_path / 'target'}, to which it leads"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "mine"
