"""A build writes and deletes in its own folder alone, and believes its files only as far as they can be true."""

import json
import os
from dataclasses import replace

import pytest

from rampcli.data.building import build as building
from rampcli.data.building import records
from rampcli.data.building.build import (
    LARGEST_BPE,
    LONGEST_NAME,
    MOST_WORKERS,
    Order,
    Watcher,
    build,
)
from rampcli.data.building.folder import BuildFolder
from rampcli.data.building.partial import take_name
from rampcli.data.indexed import IndexedFile, bin_of, idx_of, manifest_of, tokenizer_of
from rampcli.errors import UsageError
from rampcli.own_folder import MARKER

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
def order(tmp_path, monkeypatch):
    """A build in chunks of a document each."""
    monkeypatch.setattr(
        building,
        "Reader",
        lambda inputs, text_key: records.Reader(inputs, text_key, chunk_bytes=16),
    )
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"text": f"document {number}"}) + "\n" for number in range(9))
    )
    (tmp_path / "out").mkdir()
    return Order(
        inputs=(tmp_path / "in.jsonl",),
        output=tmp_path / "out" / "corpus",
        tokenizer="bytes",
        workers=1,
    )


@pytest.fixture
def canary(tmp_path):
    """A folder of the user's own, with the names that a build uses."""
    (tmp_path / "mine" / "below").mkdir(parents=True)
    for name in [*FILES, "below/thesis"]:
        (tmp_path / "mine" / name).write_text(f"{name} of mine")
    return tmp_path / "mine"


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


class Interrupting(Watcher):
    """Ctrl-C, after some documents."""

    def on_progress(self, _, written):
        if written is not None and written.documents == 3:
            raise KeyboardInterrupt


def interrupt(order):
    with pytest.raises(KeyboardInterrupt):
        build(order, Interrupting())


def refusal(order):
    with pytest.raises(UsageError) as refused:
        build(order)
    assert refused.value.exit_code == 2
    assert len(str(refused.value).splitlines()) <= 2
    return refused.value.message


@pytest.mark.parametrize("is_done", [False, True], ids=["new", "complete"])
def test_a_folder_that_rampcli_did_not_make_is_left_as_it_is(order, canary, is_done):
    if is_done:
        build(order)
    canary.rename(order.partial)
    before = contents(order.partial)
    if is_done:
        assert build(order).was_there
    else:
        assert "is not empty, and rampcli did not make it" in refusal(order)
    assert contents(order.partial) == before


def test_an_empty_folder_is_taken_and_removed_in_the_end(order):
    order.partial.mkdir()
    build(order)
    assert not order.partial.exists()


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("has_marker", [False, True])
def test_a_link_at_the_place_of_the_folder_is_refused(order, canary, has_marker, is_empty):
    if is_empty:
        for path in (*canary.glob("below/*"), *canary.glob("*")):
            path.rmdir() if path.is_dir() else path.unlink()
        (canary / MARKER).unlink(missing_ok=True)
    if has_marker:
        BuildFolder(canary).mark()
    before = contents(canary)
    order.partial.symlink_to(canary)
    assert "is a symbolic link" in refusal(order)
    assert contents(canary) == before
    assert order.partial.is_symlink()


def test_a_file_at_the_place_of_the_folder_is_refused(order):
    order.partial.write_text("mine")
    assert refusal(order) == f"{order.partial} is not a folder"
    assert order.partial.read_text() == "mine"


@pytest.mark.parametrize("begun", [False, True], ids=["planted", "half done"])
@pytest.mark.parametrize("name", FILES)
def test_a_link_in_the_folder_leads_nothing_out_of_it(order, canary, name, begun):
    if begun:
        interrupt(order)
    else:
        order.partial.mkdir()
        BuildFolder(order.partial).mark()
    before = contents(canary)
    (order.partial / name).unlink(missing_ok=True)
    (order.partial / name).symlink_to(canary / name)
    (order.partial / "more").symlink_to(canary / "below")
    if begun or name not in ("settings.json", "tokenizer.json"):
        refusal(order)
    else:  # such a file is replaced before it is read
        build(order)
        assert IndexedFile.open(order.output).documents == 9
        assert not order.partial.exists()
    assert contents(canary) == before


@pytest.mark.parametrize(
    "name", ["lock", "progress.json", "settings.json", "tokens.bin", "lengths.bin"]
)
def test_a_fifo_in_the_folder_is_refused_and_not_waited_for(order, name):
    interrupt(order)
    (order.partial / name).unlink()
    os.mkfifo(order.partial / name)
    assert "not a regular file" in refusal(order)


@pytest.mark.parametrize("path_of", [bin_of, idx_of, manifest_of, tokenizer_of])
@pytest.mark.parametrize("kind", ["file", "link", "dangling link", "folder"])
@pytest.mark.parametrize("moment", ["before", "while it is encoded"])
def test_what_has_one_of_the_final_names_is_never_written_over(
    order, canary, path_of, kind, moment
):
    before = contents(canary)

    def put():
        path = path_of(order.output)
        {"file": path.touch, "folder": path.mkdir}.get(
            kind, lambda: path.symlink_to(canary / ("lock" if kind == "link" else "none"))
        )()

    class Meddling(Watcher):
        def on_progress(self, *_):
            if not os.path.lexists(path_of(order.output)):
                put()

    if moment == "before":
        put()
        assert "is there already" in refusal(order)
        assert not order.partial.exists()
    else:
        with pytest.raises(UsageError, match="is there already, and this build did not write it"):
            build(order, Meddling())
    found = path_of(order.output)
    assert {"file": lambda: found.read_bytes() == b"", "folder": found.is_dir}.get(
        kind, found.is_symlink
    )()
    assert contents(canary) == before
    found.rmdir() if kind == "folder" else found.unlink()
    assert build(order).manifest["documents"] == 9


def test_a_progress_file_in_a_folder_of_somebody_else_writes_nothing_over(order):
    """Before there were markers, progress.json alone let a build take its names."""
    interrupt(order)
    state = json.loads((order.partial / "progress.json").read_text())
    (order.partial / "progress.json").write_text(json.dumps(state | {"is_complete": True}))
    (order.partial / MARKER).unlink()
    bin_of(order.output).write_text("mine")
    assert "is there already" in refusal(order)
    assert bin_of(order.output).read_text() == "mine"


def test_a_complete_build_that_lacks_a_file_is_no_corpus(tmp_path):
    with pytest.raises(UsageError, match=r"tokens\.bin is missing"):
        take_name(tmp_path / "tokens.bin", tmp_path / "corpus.bin")


def put(order, name, **changes):
    path = order.partial / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGES = {
    "position is not a mapping": lambda order: put(order, "progress.json", position=[]),
    "position.input is not a whole number": lambda order: put(
        order, "progress.json", position={"input": -1, "offset": 0, "line": 0}
    ),
    "there is no input 7": lambda order: put(
        order, "progress.json", position={"input": 7, "offset": 0, "line": 0}
    ),
    "tokens is not a whole number": lambda order: put(order, "progress.json", tokens=10**30),
    "documents is not a whole number": lambda order: put(order, "progress.json", documents="9"),
    "is_complete is not true or false": lambda order: put(order, "progress.json", is_complete=1),
    "tokens.bin is shorter than": lambda order: put(order, "progress.json", tokens=10**18),
    "lengths.bin is shorter than": lambda order: put(order, "progress.json", documents=10**18),
    "inputs[0] has no": lambda order: put(order, "settings.json", inputs=[{}]),
    "inputs is not a list": lambda order: put(order, "settings.json", inputs=7),
    "settings.json is missing": lambda order: (order.partial / "settings.json").unlink(),
    "progress.json is damaged": lambda order: (order.partial / "progress.json").write_text(
        "[" * 10**6
    ),
    "settings.json is damaged": lambda order: (order.partial / "settings.json").write_bytes(
        b"\xff"
    ),
}


@pytest.mark.parametrize("said", DAMAGES)
def test_a_half_done_build_that_is_damaged_is_one_message_that_names_the_file_and_keeps_it(
    order, said
):
    interrupt(order)
    DAMAGES[said](order)
    tokens = (order.partial / "tokens.bin").read_bytes()
    assert said in refusal(order)
    assert (order.partial / "tokens.bin").read_bytes() == tokens


def test_a_build_whose_output_nobody_reads_keeps_what_is_done_and_blames_no_file(order):
    class Unheard(Watcher):
        def on_progress(self, *_):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        build(order, Unheard())
    assert json.loads((order.partial / "progress.json").read_text())["documents"] == 1
    assert build(order).manifest["documents"] == 9


@pytest.mark.parametrize("value", [-1, 0, 2**40, 7])
def test_lengths_that_are_not_those_of_the_tokens_are_refused_before_an_index_is_made_of_them(
    order, value
):
    interrupt(order)
    with (order.partial / "lengths.bin").open("r+b") as file:
        file.write(value.to_bytes(8, "little", signed=True))
    assert "lengths.bin is damaged" in refusal(order)
    assert not idx_of(order.output).exists()


def test_temporary_files_of_a_killed_build_are_removed_with_the_folder(order):
    interrupt(order)
    (order.partial / ".progress.json.0123.tmp").write_text("half")
    build(order)
    assert {path.name for path in order.output.parent.iterdir()} == {
        "corpus.bin",
        "corpus.idx",
        "corpus.json",
        "corpus.tokenizer.json",
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"workers": MOST_WORKERS + 1},
            f"--workers {MOST_WORKERS + 1}: from 1 to 64 processes, or to 4 for each processor",
        ),
        ({"workers": 10**30}, "from 1 to 64"),
        ({"workers": 0}, "--workers 0"),
        (
            {"tokenizer": None, "train_bpe": LARGEST_BPE + 1},
            "--train-bpe 2000001: at most 2,000,000",
        ),
        ({"tokenizer": None, "train_bpe": 10**18}, "at most 2,000,000"),
        (
            {"text_key": "k" * (LONGEST_NAME + 1)},
            "--text-key has 1,001 characters, and at most 1,000",
        ),
        ({"eod": "k" * 10**6}, "--eod has 1,000,000 characters"),
    ],
)
def test_what_nobody_means_is_refused_with_the_limit_and_writes_nothing(order, changes, said):
    assert said in refusal(replace(order, **changes))
    assert list(order.output.parent.iterdir()) == []
