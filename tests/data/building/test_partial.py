"""A build writes and deletes only in its own folder, and checks the files that it finds there."""

import json
import os

import pytest

from built_corpora import interrupt_after, write_lines
from rampcli.data.building.build import build
from rampcli.data.building.options import BuildOptions
from rampcli.data.building.partial import BuildFolder, Watcher, move_into_place
from rampcli.data.indexed import IndexedFile, bin_of, idx_of, manifest_of, tokenizer_of
from rampcli.errors import UsageError
from rampcli.files.guarded_folder import MARKER

FILES = [
    "lock",
    "progress.json",
    "settings.json",
    "tokens.bin",
    "lengths.bin",
    "skipped.jsonl",
    "tokenizer.json",
    "index.idx",
    MARKER,
]


@pytest.fixture
def options(tmp_path, in_small_chunks):  # noqa: ARG001
    write_lines(tmp_path / "in.jsonl", [f"document {number}" for number in range(9)])
    (tmp_path / "out").mkdir()
    return BuildOptions(
        inputs=(tmp_path / "in.jsonl",),
        output=tmp_path / "out" / "corpus",
        tokenizer="bytes",
        workers=1,
    )


@pytest.fixture
def canary(tmp_path):
    """Creates an unrelated folder whose files have the names of a build."""
    (tmp_path / "mine" / "below").mkdir(parents=True)
    for name in [*FILES, "below/thesis"]:
        (tmp_path / "mine" / name).write_text(f"{name} of mine")
    return tmp_path / "mine"


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def interrupt(options):
    with pytest.raises(KeyboardInterrupt):
        build(options, interrupt_after(3))


def refusal(options):
    with pytest.raises(UsageError) as refused:
        build(options)
    assert refused.value.exit_code == 2
    assert len(str(refused.value).splitlines()) <= 2
    return refused.value.message


@pytest.mark.parametrize("is_done", [False, True], ids=["new", "complete"])
def test_a_folder_that_rampcli_did_not_create_is_not_changed(options, canary, is_done):
    if is_done:
        build(options)
    canary.rename(options.partial)
    before = contents(options.partial)
    if is_done:
        assert build(options).was_complete
    else:
        assert "is not empty, and rampcli did not make it" in refusal(options)
    assert contents(options.partial) == before


def test_an_empty_folder_is_used_for_the_build_and_removed_at_its_end(options):
    options.partial.mkdir()
    build(options)
    assert not options.partial.exists()


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("has_marker", [False, True])
def test_a_link_in_place_of_the_build_folder_is_refused(options, canary, has_marker, is_empty):
    if is_empty:
        for path in (*canary.glob("below/*"), *canary.glob("*")):
            path.rmdir() if path.is_dir() else path.unlink()
        (canary / MARKER).unlink(missing_ok=True)
    if has_marker:
        BuildFolder(canary).mark()
    before = contents(canary)
    options.partial.symlink_to(canary)
    assert "is a symbolic link" in refusal(options)
    assert contents(canary) == before
    assert options.partial.is_symlink()


def test_a_file_in_place_of_the_build_folder_is_refused(options):
    options.partial.write_text("mine")
    assert refusal(options) == f"{options.partial} is not a folder"
    assert options.partial.read_text() == "mine"


@pytest.mark.parametrize("begun", [False, True], ids=["planted", "unfinished"])
@pytest.mark.parametrize("name", FILES)
def test_a_link_in_the_build_folder_redirects_no_write(options, canary, name, begun):
    if begun:
        interrupt(options)
    else:
        options.partial.mkdir()
        BuildFolder(options.partial).mark()
    before = contents(canary)
    (options.partial / name).unlink(missing_ok=True)
    (options.partial / name).symlink_to(canary / name)
    (options.partial / "more").symlink_to(canary / "below")
    if begun or name not in ("settings.json", "tokenizer.json"):
        refusal(options)
    else:  # this file is replaced before it is read
        build(options)
        assert IndexedFile.open(options.output).documents == 9
        assert not options.partial.exists()
    assert contents(canary) == before


@pytest.mark.parametrize(
    "name", ["lock", "progress.json", "settings.json", "tokens.bin", "lengths.bin"]
)
def test_a_fifo_in_the_build_folder_is_refused_without_waiting(options, name):
    interrupt(options)
    (options.partial / name).unlink()
    os.mkfifo(options.partial / name)
    assert "not a regular file" in refusal(options)


@pytest.mark.parametrize("path_of", [bin_of, idx_of, manifest_of, tokenizer_of])
@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "folder"])
@pytest.mark.parametrize("moment", ["before", "while it is encoded"])
def test_nothing_with_a_final_name_is_overwritten(options, canary, path_of, kind, moment):
    before = contents(canary)

    def put():
        path = path_of(options.output)
        {"file": path.touch, "folder": path.mkdir}.get(
            kind, lambda: path.symlink_to(canary / ("lock" if kind == "link" else "none"))
        )()

    class Meddling(Watcher):
        def on_progress(self, *_):
            if not os.path.lexists(path_of(options.output)):
                put()

    if moment == "before":
        put()
        assert "already exists" in refusal(options)
        assert not options.partial.exists()
    else:
        with pytest.raises(UsageError, match="already exists, and this build did not write it"):
            build(options, Meddling())
    found = path_of(options.output)
    assert {"file": lambda: found.read_bytes() == b"", "folder": found.is_dir}.get(
        kind, found.is_symlink
    )()
    assert contents(canary) == before
    found.rmdir() if kind == "folder" else found.unlink()
    assert build(options).manifest["documents"] == 9


def test_a_progress_file_without_the_marker_overwrites_nothing(options):
    """Without the marker, progress.json must not let a build move its files into place."""
    interrupt(options)
    state = json.loads((options.partial / "progress.json").read_text())
    (options.partial / "progress.json").write_text(json.dumps(state | {"is_complete": True}))
    (options.partial / MARKER).unlink()
    bin_of(options.output).write_text("mine")
    assert "already exists" in refusal(options)
    assert bin_of(options.output).read_text() == "mine"


def test_a_complete_build_that_lacks_a_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"tokens\.bin is missing"):
        move_into_place(tmp_path / "tokens.bin", tmp_path / "corpus.bin")


def put(options, name, **changes):
    path = options.partial / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGES = {
    "position is not a mapping": lambda options: put(options, "progress.json", position=[]),
    "position.input is not a whole number": lambda options: put(
        options, "progress.json", position={"input": -1, "offset": 0, "line": 0}
    ),
    "there is no input 7": lambda options: put(
        options, "progress.json", position={"input": 7, "offset": 0, "line": 0}
    ),
    "tokens is not a whole number": lambda options: put(options, "progress.json", tokens=10**30),
    "documents is not a whole number": lambda options: put(options, "progress.json", documents="9"),
    "is_complete is not true or false": lambda options: put(
        options, "progress.json", is_complete=1
    ),
    "tokens.bin is shorter than": lambda options: put(options, "progress.json", tokens=10**18),
    "lengths.bin is shorter than": lambda options: put(options, "progress.json", documents=10**18),
    "inputs[0] has no": lambda options: put(options, "settings.json", inputs=[{}]),
    "inputs is not a list": lambda options: put(options, "settings.json", inputs=7),
    "settings.json is missing": lambda options: (options.partial / "settings.json").unlink(),
    "progress.json is damaged": lambda options: (options.partial / "progress.json").write_text(
        "[" * 10**6
    ),
    "settings.json is damaged": lambda options: (options.partial / "settings.json").write_bytes(
        b"\xff"
    ),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_unfinished_build_gives_one_message_that_names_the_file_and_keeps_it(
    options, message
):
    interrupt(options)
    DAMAGES[message](options)
    tokens = (options.partial / "tokens.bin").read_bytes()
    assert message in refusal(options)
    assert (options.partial / "tokens.bin").read_bytes() == tokens


def test_a_build_whose_output_pipe_is_closed_keeps_its_progress_and_blames_no_file(options):
    class Unheard(Watcher):
        def on_progress(self, *_):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        build(options, Unheard())
    assert json.loads((options.partial / "progress.json").read_text())["documents"] == 1
    assert build(options).manifest["documents"] == 9


@pytest.mark.parametrize("value", [-1, 0, 2**40, 7])
def test_lengths_that_do_not_match_the_tokens_are_refused_before_an_index_is_written(
    options, value
):
    interrupt(options)
    with (options.partial / "lengths.bin").open("r+b") as file:
        file.write(value.to_bytes(8, "little", signed=True))
    assert "lengths.bin is damaged" in refusal(options)
    assert not idx_of(options.output).exists()


def test_temporary_files_of_a_killed_build_are_removed_with_the_folder(options):
    interrupt(options)
    (options.partial / ".progress.json.0123.tmp").write_text("half")
    build(options)
    assert {path.name for path in options.output.parent.iterdir()} == {
        "corpus.bin",
        "corpus.idx",
        "corpus.json",
        "corpus.tokenizer.json",
    }
