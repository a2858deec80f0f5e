import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from rampcli.checksums import sha256
from rampcli.data.building import build as building
from rampcli.data.building import parsing, records
from rampcli.data.building.build import Order, Watcher, build
from rampcli.data.building.streams import cut_of
from rampcli.data.indexed import IndexedFile, bin_of, idx_of, manifest_of, tokenizer_of
from rampcli.data.manifest import read_manifest
from rampcli.data.tokenizer import END_OF_TEXT, open_tokenizer
from rampcli.errors import RampcliError, UsageError

TEXTS = ["the cat sat on the mat", "", "a dog\nand a 漢字 🙂", "the end"]


def write_lines(path: Path, texts, *, key="text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({key: text}) + "\n" for text in texts))
    return path


@pytest.fixture
def order(tmp_path):
    source = write_lines(tmp_path / "in" / "a.jsonl", TEXTS)
    (tmp_path / "in" / "b.txt").write_text("a text of its own\n" * 3)
    return Order(
        inputs=(source.parent,), output=tmp_path / "out" / "corpus", tokenizer="bytes", workers=1
    )


def documents_of(prefix: Path) -> list[list[int]]:
    file = IndexedFile.open(prefix)
    return [
        file.tokens[first:end].tolist()
        for first, end in pairwise(file.first_tokens(0, file.documents))
    ]


def texts_of(prefix: Path) -> list[str]:
    tokenizer = open_tokenizer(tokenizer_of(prefix))
    return [tokenizer.decode(tokens, skip_special_tokens=False) for tokens in documents_of(prefix)]


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def interrupt_after(documents: int) -> Watcher:
    """Ctrl-C, once so many documents are written."""

    class Impatient(Watcher):
        def on_progress(self, _, written):
            if written is not None and written.documents >= documents:
                raise KeyboardInterrupt

    return Impatient()


@pytest.mark.parametrize(
    "changes",
    [{"tokenizer": "bytes"}, {"tokenizer": "chars"}, {"tokenizer": None, "train_bpe": 280}],
)
def test_what_was_built_is_decoded_to_the_texts(order, changes):
    manifest = build(replace(order, **changes)).manifest
    end = END_OF_TEXT if changes["tokenizer"] is None else ""
    assert texts_of(order.output) == [
        text + end for text in (*TEXTS, "a text of its own\n" * 3) if text
    ]
    assert (manifest["documents"], manifest["empty"], manifest["skipped"]) == (4, 1, 0)
    assert manifest["text_bytes"] == sum(len(text.encode()) for text in TEXTS) + 54
    tokens = IndexedFile.open(order.output).tokens
    assert (manifest["tokens"], manifest["largest_token"]) == (len(tokens), tokens.max())
    assert manifest["largest_token"] < manifest["vocab_size"]


def test_the_manifest_says_what_is_in_the_files_and_nothing_else_is_left(order):
    manifest = build(order).manifest
    assert left_in(order.output.parent) == {
        "corpus.bin",
        "corpus.idx",
        "corpus.json",
        "corpus.tokenizer.json",
    }
    assert manifest == read_manifest(order.output)
    for name, path in (
        ("bin", bin_of(order.output)),
        ("idx", idx_of(order.output)),
        ("tokenizer", tokenizer_of(order.output)),
    ):
        assert manifest["files"][name] == {"bytes": path.stat().st_size, "sha256": sha256(path)}
    assert [Path(one["name"]).name for one in manifest["inputs"]] == ["a.jsonl", "b.txt"]


def test_the_corpus_is_the_same_whatever_the_number_of_workers(order):
    (order.inputs[0] / "c.txt").write_text(
        "".join(f"line {number} of a text in pieces\n" for number in range(80_000))
    )
    write_lines(
        order.inputs[0] / "d.jsonl",
        [f"document {number} " * (number % 50) for number in range(9000)],
    )
    files = []
    for workers in (1, 2, 3):
        of_workers = replace(
            order, output=order.output.with_name(f"by{workers}"), workers=workers, tokenizer="chars"
        )
        assert build(of_workers).manifest["documents"] == 8820 + 5
        files.append(
            [path_of(of_workers.output).read_bytes() for path_of in (bin_of, idx_of, tokenizer_of)]
        )
    assert files[0] == files[1] == files[2]


def test_a_long_text_is_one_document_whether_it_is_a_file_or_a_line_of_json(
    order, tmp_path, monkeypatch
):
    monkeypatch.setattr(parsing, "PIECE_BYTES", 4096)
    monkeypatch.setattr(
        building,
        "Reader",
        lambda inputs, text_key: records.Reader(inputs, text_key, chunk_bytes=4096),
    )
    build(replace(order, tokenizer=None, train_bpe=280))
    text = "a long text of many words\n\n  and\tblanks " * 400
    (tmp_path / "long.txt").write_text(text)
    write_lines(tmp_path / "long.jsonl", [text])
    long = Order(
        inputs=(tmp_path / "long.txt", tmp_path / "long.jsonl"),
        output=tmp_path / "long",
        tokenizer=str(tokenizer_of(order.output)),
        workers=1,
    )
    build(long)
    of_file, of_line = documents_of(long.output)
    assert of_file == of_line
    assert texts_of(long.output) == [text + END_OF_TEXT] * 2


def test_a_cut_after_a_line_changes_no_token_of_gpt2s_rule(order):
    build(replace(order, tokenizer=None, train_bpe=280))
    tokenizer = open_tokenizer(tokenizer_of(order.output))
    text = "some words\n    indented\n\nand a paragraph\nwith lines\n" * 4
    cut = cut_of(text.encode())
    assert (
        tokenizer.encode(text[:cut]).ids + tokenizer.encode(text[cut:]).ids
        == tokenizer.encode(text).ids
    )


def test_what_reads_like_a_special_token_in_a_text_is_text(order, tmp_path):
    build(replace(order, tokenizer=None, train_bpe=280))
    text = f"before {END_OF_TEXT} after"
    source = write_lines(tmp_path / "sly.jsonl", [text])
    sly = replace(
        order, inputs=(source,), output=tmp_path / "sly", tokenizer=str(tokenizer_of(order.output))
    )
    build(sly)
    (tokens,) = documents_of(sly.output)
    assert [number for number, token in enumerate(tokens) if token == 0] == [len(tokens) - 1]
    assert texts_of(sly.output) == [text + END_OF_TEXT]


@pytest.mark.parametrize(("eod", "ends"), [(None, []), ("none", []), ("z", [122])])
def test_a_document_ends_as_it_was_asked_for(order, eod, ends):
    manifest = build(replace(order, eod=eod)).manifest
    assert documents_of(order.output)[0] == [*TEXTS[0].encode(), *ends]
    assert (manifest["eod"], manifest["eod_token"]) == ((122, "z") if ends else (None, None))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": None}, "one of both is needed"),
        ({"train_bpe": 300}, "only one of both"),
        ({"tokenizer": None, "train_bpe": 256}, "257 tokens"),
        ({"eod": "</s>"}, "has no such token"),
        ({"tokenizer": "none.json"}, "cannot read the tokenizer"),
        ({"tokenizer": None, "train_bpe": 300, "eod": "</s>"}, "a tokenizer that is trained has"),
        ({"on_bad_record": "ignore"}, "there is stop and skip"),
        ({"output": Path("corpus.bin")}, "is a prefix"),
        ({"output": Path("/tmp")}, "is a folder"),
    ],
)
def test_an_order_that_does_not_fit_itself_is_refused_and_writes_nothing(order, changes, said):
    with pytest.raises(UsageError, match=said):
        build(replace(order, **changes))
    assert left_in(order.output.parent) == set()


@pytest.mark.parametrize("text", [None, ""])
def test_a_corpus_without_a_token_is_refused_and_leaves_nothing(order, tmp_path, text):
    source = write_lines(tmp_path / "empty.jsonl", [] if text is None else [text])
    for tokenizer in ("bytes", "chars"):
        with pytest.raises(UsageError, match="nothing to encode"):
            build(replace(order, inputs=(source,), tokenizer=tokenizer))
    assert left_in(order.output.parent) == set()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_a_bad_record_stops_the_build_or_is_listed(order, workers, tokenizer):
    order = replace(order, workers=workers, tokenizer=tokenizer)
    bad = write_lines(order.inputs[0] / "c.jsonl", ["good"])
    with bad.open("a") as file:
        file.write('{"body": 1}\n{"text": "also good"}\n')
    with pytest.raises(UsageError, match=r"c\.jsonl, line 2: no text; it has body") as stopped:
        build(order)
    assert stopped.value.exit_code == 2
    assert not {"corpus.bin", "corpus.idx", "corpus.json"} & left_in(order.output.parent)
    manifest = build(replace(order, on_bad_record="skip")).manifest
    assert (manifest["skipped"], texts_of(order.output)[-2:]) == (1, ["good", "also good"])
    listed = order.output.with_name("corpus.skipped.jsonl").read_text()
    assert json.loads(listed) == {"file": str(bad), "line": 2, "reason": "no text; it has body"}


@pytest.fixture
def in_small_chunks(monkeypatch):
    """Chunks of a document each."""
    monkeypatch.setattr(
        building,
        "Reader",
        lambda inputs, text_key: records.Reader(inputs, text_key, chunk_bytes=16),
    )


@pytest.mark.usefixtures("in_small_chunks")
@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_a_build_that_was_interrupted_again_and_again_is_the_same_in_the_end(order, tokenizer):
    order = replace(order, tokenizer=tokenizer)
    write_lines(order.inputs[0] / "c.jsonl", [f"document {number}" for number in range(12)])
    build(replace(order, output=order.output.with_name("whole")))
    for documents in (1, 2, 5, 9):
        with pytest.raises(KeyboardInterrupt):
            build(order, interrupt_after(documents))
        with (order.partial / "tokens.bin").open("ab") as file:
            file.write(b"what came after the last save")
        assert idx_of(order.output) not in order.output.parent.iterdir()
    build(order)
    for path_of in (bin_of, idx_of, tokenizer_of):
        assert (
            path_of(order.output).read_bytes()
            == path_of(order.output.with_name("whole")).read_bytes()
        )
    assert not order.partial.exists()


@pytest.mark.usefixtures("in_small_chunks")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda order: replace(order, tokenizer="chars"), "tokenizer was bytes and is chars"),
        (lambda order: replace(order, text_key="body"), "text_key was text and is body"),
        (lambda order: os.utime(order.inputs[0] / "b.txt", ns=(0, 0)), r"b\.txt has changed"),
        (lambda order: (order.inputs[0] / "b.txt").unlink(), r"b\.txt is no input any more"),
        (lambda order: (order.inputs[0] / "z.txt").touch(), r"z\.txt was added"),
        (lambda order: (order.partial / "progress.json").write_text("{"), "is damaged"),
        (lambda order: (order.partial / "tokens.bin").write_bytes(b""), "shorter than"),
    ],
)
def test_a_build_does_not_go_on_with_something_else(order, change, said):
    with pytest.raises(KeyboardInterrupt):
        build(order, interrupt_after(2))
    changed = change(order)
    with pytest.raises(UsageError, match=said) as refused:
        build(changed if isinstance(changed, Order) else order)
    assert f"delete {order.partial}" in refused.value.remedy


def test_an_input_that_changes_while_it_is_read_is_noticed(order):
    class Meddling(Watcher):
        def on_progress(self, *_):
            (order.inputs[0] / "b.txt").write_text("something else")

    with pytest.raises(UsageError, match=r"b\.txt has changed while it was read"):
        build(order, Meddling())
    assert not idx_of(order.output).exists()


def test_a_complete_build_is_found_and_never_written_over(order):
    build(order)
    before = {path: path.stat().st_mtime_ns for path in order.output.parent.iterdir()}
    assert build(order).was_there
    with pytest.raises(UsageError, match="there already"):
        build(replace(order, tokenizer="chars"))
    (order.inputs[0] / "new.txt").write_text("more")
    with pytest.raises(UsageError, match="there already"):
        build(order)
    assert {path: path.stat().st_mtime_ns for path in order.output.parent.iterdir()} == before


def test_an_input_whose_name_a_product_would_take_is_safe(tmp_path):
    source = write_lines(tmp_path / "corpus.json", TEXTS)
    before = source.read_bytes()
    with pytest.raises(UsageError, match=r"corpus\.json is there already"):
        build(Order(inputs=(source,), output=tmp_path / "corpus", tokenizer="bytes"))
    assert source.read_bytes() == before


def test_a_build_that_was_killed_between_two_names_takes_the_others(order, monkeypatch):
    renamed = []

    def killed_after_two(path, name):
        if len(renamed) == 2:
            raise KeyboardInterrupt
        renamed.append(name)
        path.rename(name)

    with monkeypatch.context() as patched:
        patched.setattr(building, "take_name", killed_after_two)
        with pytest.raises(KeyboardInterrupt):
            build(order)
    assert renamed == [bin_of(order.output), tokenizer_of(order.output)]
    assert not idx_of(order.output).exists()
    build(order)
    assert len(documents_of(order.output)) == 4
    assert not order.partial.exists()


def test_a_second_build_to_the_same_names_is_refused_while_one_is_at_work(order):
    class Curious(Watcher):
        said = None

        def on_progress(self, *_):
            try:
                build(order)
            except UsageError as error:
                self.said = error.message

    watcher = Curious()
    build(order, watcher)
    assert watcher.said == f"another build of {order.output} is at work"
    assert len(documents_of(order.output)) == 4


def test_a_full_disk_is_one_error_and_the_build_goes_on_when_there_is_room(order, tmp_path):
    source = write_lines(tmp_path / "large.jsonl", [f"{number} " * 200 for number in range(3000)])
    large = replace(order, inputs=(source,))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(RampcliError, match="cannot write") as full:
            build(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (full.value.exit_code, full.value.__cause__.errno) == (1, errno.EFBIG)
    assert left_in(order.output.parent) == {"corpus.building"}
    assert build(large).manifest["documents"] == 3000


def test_a_worker_that_is_killed_is_one_error_and_the_build_goes_on(order, tmp_path):
    source = write_lines(
        tmp_path / "large.jsonl", [f"words of document {number} " * 400 for number in range(250)]
    )
    build(replace(order, tokenizer=None, train_bpe=280))
    command = [
        sys.executable,
        "-m",
        "rampcli",
        "data",
        "build",
        source,
        "--output",
        tmp_path / "large",
        "--workers",
        "2",
    ]
    command += ["--tokenizer", tokenizer_of(order.output)]
    running = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    children: list[int] = []
    deadline = time.monotonic() + 300
    while len(children) < 2 and time.monotonic() < deadline:
        found = subprocess.run(
            ["pgrep", "-P", str(running.pid), "-f", "spawn_main"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        children = list(map(int, found.split()))
    os.kill(children[0], signal.SIGKILL)
    _, said = running.communicate(timeout=300)
    assert (running.returncode, said.splitlines()[0].partition(":")[2].partition(":")[0]) == (
        1,
        " a worker process has died",
    ), said
    assert not idx_of(tmp_path / "large").exists()
    done = replace(
        order,
        inputs=(source,),
        output=tmp_path / "large",
        tokenizer=str(tokenizer_of(order.output)),
        workers=2,
    )
    assert build(done).manifest["documents"] == 250


def test_the_memory_of_a_build_does_not_grow_with_its_input(tmp_path):
    line = json.dumps({"text": "some words that are said again and again " * 100}) + "\n"
    peaks = []
    for megabytes in (8, 60):
        (tmp_path / "in.jsonl").write_text(line * (megabytes * 1_000_000 // len(line)))
        probe = (
            "from pathlib import Path; from rampcli.data.building.build import Order, build;"
            f"build(Order(inputs=(Path('in.jsonl'),), output=Path('out{megabytes}'), tokenizer='bytes', workers=1));"
            "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
        )
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", probe],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout))
    assert peaks[1] - peaks[0] < 16_000, "kilobytes, of 52,000 more of input"


def test_merges_are_learnt_from_every_nth_chunk_of_a_large_corpus(order, monkeypatch, tmp_path):
    write_lines(tmp_path / "many.jsonl", ["seldom words here"] * 30 + ["others over there"] * 30)
    monkeypatch.setattr(
        building,
        "Reader",
        lambda inputs, text_key: records.Reader(inputs, text_key, chunk_bytes=64),
    )
    monkeypatch.setattr(building, "TRAINING_BYTES", 1000)
    many = replace(order, inputs=(tmp_path / "many.jsonl",), tokenizer=None, train_bpe=290)
    build(many)
    vocabulary = Tokenizer.from_file(str(tokenizer_of(many.output))).get_vocab()
    assert {"seldom", "others"} <= set(vocabulary)


def test_all_lengths_and_types_are_those_of_the_tokens(order):
    build(order)
    file = IndexedFile.open(order.output)
    assert file.tokens.dtype == np.uint16
    assert file.lengths.sum() == len(file.tokens)
    assert manifest_of(order.output).read_text().startswith("{\n")
