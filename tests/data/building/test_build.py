import errno
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest

from built_corpora import TEXTS, documents_of, interrupt_after, left_in, texts_of, write_lines
from rampcli.data.building import build as building
from rampcli.data.building import encoding, records
from rampcli.data.building.build import build
from rampcli.data.building.options import BuildOptions
from rampcli.data.building.partial import Watcher
from rampcli.data.indexed import (
    IndexedFile,
    bin_of,
    idx_of,
    manifest_of,
    read_manifest,
    tokenizer_of,
)
from rampcli.data.tokenizer import END_OF_TEXT
from rampcli.errors import RampcliError, UsageError
from rampcli.files.checksums import sha256


@pytest.mark.parametrize(
    "changes",
    [{"tokenizer": "bytes"}, {"tokenizer": "chars"}, {"tokenizer": None, "train_bpe": 280}],
)
def test_a_built_corpus_decodes_to_its_texts(options, changes):
    manifest = build(replace(options, **changes)).manifest
    end = END_OF_TEXT if changes["tokenizer"] is None else ""
    assert texts_of(options.output) == [
        text + end for text in (*TEXTS, "a text of its own\n" * 3) if text
    ]
    assert (manifest["documents"], manifest["empty"], manifest["skipped"]) == (4, 1, 0)
    assert manifest["text_bytes"] == sum(len(text.encode()) for text in TEXTS) + 54
    tokens = IndexedFile.open(options.output).tokens
    assert (manifest["tokens"], manifest["largest_token"]) == (len(tokens), tokens.max())
    assert manifest["largest_token"] < manifest["vocab_size"]


def test_the_manifest_describes_the_files_and_no_other_file_is_left(options):
    manifest = build(options).manifest
    assert left_in(options.output.parent) == {
        "corpus.bin",
        "corpus.idx",
        "corpus.json",
        "corpus.tokenizer.json",
    }
    assert manifest == read_manifest(options.output)
    for name, path in (
        ("bin", bin_of(options.output)),
        ("idx", idx_of(options.output)),
        ("tokenizer", tokenizer_of(options.output)),
    ):
        assert manifest["files"][name] == {"bytes": path.stat().st_size, "sha256": sha256(path)}
    assert [Path(one["name"]).name for one in manifest["inputs"]] == ["a.jsonl", "b.txt"]


def test_the_corpus_does_not_depend_on_the_number_of_workers(options, recwarn):
    (options.inputs[0] / "c.txt").write_text(
        "".join(f"line {number} of a text in pieces\n" for number in range(80_000))
    )
    write_lines(
        options.inputs[0] / "d.jsonl",
        [f"document {number} " * (number % 50) for number in range(9000)],
    )
    files = []
    for workers in (1, 2, 3):
        of_workers = replace(
            options,
            output=options.output.with_name(f"by{workers}"),
            workers=workers,
            tokenizer="chars",
        )
        assert build(of_workers).manifest["documents"] == 8820 + 5
        files.append(
            [path_of(of_workers.output).read_bytes() for path_of in (bin_of, idx_of, tokenizer_of)]
        )
    assert files[0] == files[1] == files[2]
    assert not [one.message for one in recwarn if one.category is ResourceWarning]


def test_a_long_text_is_one_document_as_a_file_or_as_a_line_of_json(options, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "TEXT_PIECE_BYTES", 4096)
    monkeypatch.setattr(building, "Reader", partial(records.Reader, chunk_bytes=4096))
    build(replace(options, tokenizer=None, train_bpe=280))
    text = "a long text of many words\n\n  and\tblanks " * 400
    (tmp_path / "long.txt").write_text(text)
    write_lines(tmp_path / "long.jsonl", [text])
    long = BuildOptions(
        inputs=(tmp_path / "long.txt", tmp_path / "long.jsonl"),
        output=tmp_path / "long",
        tokenizer=str(tokenizer_of(options.output)),
        workers=1,
    )
    build(long)
    of_file, of_line = documents_of(long.output)
    assert of_file == of_line
    assert texts_of(long.output) == [text + END_OF_TEXT] * 2


@pytest.mark.parametrize("text", [None, ""])
def test_a_corpus_without_a_token_is_refused_and_leaves_nothing(options, tmp_path, text):
    source = write_lines(tmp_path / "empty.jsonl", [] if text is None else [text])
    for tokenizer in ("bytes", "chars"):
        with pytest.raises(UsageError, match="the inputs contain no text"):
            build(replace(options, inputs=(source,), tokenizer=tokenizer))
    assert left_in(options.output.parent) == set()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_a_bad_record_stops_the_build_or_is_listed_as_requested(options, workers, tokenizer):
    options = replace(options, workers=workers, tokenizer=tokenizer)
    bad = write_lines(options.inputs[0] / "c.jsonl", ["good"])
    with bad.open("a") as file:
        file.write('{"body": 1}\n{"text": "also good"}\n')
    with pytest.raises(
        UsageError, match=r"c\.jsonl, line 2: no key text; the keys are: body"
    ) as stopped:
        build(options)
    assert stopped.value.exit_code == 2
    assert not {"corpus.bin", "corpus.idx", "corpus.json"} & left_in(options.output.parent)
    manifest = build(replace(options, on_bad_record="skip")).manifest
    assert (manifest["skipped"], texts_of(options.output)[-2:]) == (1, ["good", "also good"])
    listed = options.output.with_name("corpus.skipped.jsonl").read_text()
    assert json.loads(listed) == {
        "file": str(bad),
        "line": 2,
        "reason": "no key text; the keys are: body",
    }


@pytest.mark.usefixtures("in_small_chunks")
@pytest.mark.parametrize("tokenizer", ["bytes", "chars"])
def test_a_build_that_was_interrupted_repeatedly_gives_the_same_corpus(options, tokenizer):
    options = replace(options, tokenizer=tokenizer)
    write_lines(options.inputs[0] / "c.jsonl", [f"document {number}" for number in range(12)])
    whole = build(replace(options, output=options.output.with_name("whole"))).manifest
    for documents in (1, 2, 5, 9):
        with pytest.raises(KeyboardInterrupt):
            build(options, interrupt_after(documents))
        with (options.partial / "tokens.bin").open("ab") as file:
            file.write(b"what came after the last save")
        assert idx_of(options.output) not in options.output.parent.iterdir()
    assert build(options).manifest["files"] == whole["files"]
    for path_of in (bin_of, idx_of, tokenizer_of):
        assert (
            path_of(options.output).read_bytes()
            == path_of(options.output.with_name("whole")).read_bytes()
        )
    assert not options.partial.exists()


@pytest.mark.usefixtures("in_small_chunks")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda options: replace(options, tokenizer="chars"),
            "--tokenizer was bytes and is now chars",
        ),
        (lambda options: replace(options, text_key="body"), "--text-key was text and is now body"),
        (lambda options: os.utime(options.inputs[0] / "b.txt", ns=(0, 0)), r"b\.txt has changed"),
        (lambda options: (options.inputs[0] / "b.txt").unlink(), r"b\.txt is no longer an input"),
        (lambda options: (options.inputs[0] / "z.txt").touch(), r"z\.txt was added"),
        (lambda options: (options.partial / "progress.json").write_text("{"), "is damaged"),
        (lambda options: (options.partial / "tokens.bin").write_bytes(b""), "shorter than"),
    ],
)
def test_a_build_does_not_resume_with_other_options_or_inputs(options, change, message):
    with pytest.raises(KeyboardInterrupt):
        build(options, interrupt_after(2))
    changed = change(options)
    with pytest.raises(UsageError, match=message) as refused:
        build(changed if isinstance(changed, BuildOptions) else options)
    assert f"delete {options.partial}" in refused.value.remedy


def test_an_input_that_changes_while_it_is_read_is_refused(options):
    class Meddling(Watcher):
        def on_progress(self, *_):
            (options.inputs[0] / "b.txt").write_text("something else")

    with pytest.raises(UsageError, match=r"b\.txt changed while it was being read"):
        build(options, Meddling())
    assert not idx_of(options.output).exists()


def test_a_complete_build_is_recognised_and_never_overwritten(options):
    build(options)
    before = {path: path.stat().st_mtime_ns for path in options.output.parent.iterdir()}
    assert build(options).was_complete
    with pytest.raises(UsageError, match="already exist"):
        build(replace(options, tokenizer="chars"))
    (options.inputs[0] / "new.txt").write_text("more")
    with pytest.raises(UsageError, match="already exist"):
        build(options)
    assert {path: path.stat().st_mtime_ns for path in options.output.parent.iterdir()} == before


def test_one_refusal_names_every_file_of_another_corpus(options):
    build(options)
    with pytest.raises(UsageError) as refused:
        build(replace(options, tokenizer="chars"))
    existing = [path for path in options.products if path.exists()]
    assert len(existing) == 4
    assert all(path.name in refused.value.message for path in existing)


def test_a_missing_key_is_answered_with_the_key_of_the_longest_text(options, tmp_path):
    path = tmp_path / "articles.jsonl"
    path.write_text('{"title": "Tides", "content": "The moon raises the sea.", "n": 100000000000}')
    with pytest.raises(UsageError) as refused:
        build(replace(options, inputs=(path,)))
    assert "--text-key content" in refused.value.remedy


def test_an_input_with_the_name_of_an_output_is_not_overwritten(tmp_path):
    source = write_lines(tmp_path / "corpus.json", TEXTS)
    before = source.read_bytes()
    with pytest.raises(UsageError, match=r"corpus\.json already exists"):
        build(BuildOptions(inputs=(source,), output=tmp_path / "corpus", tokenizer="bytes"))
    assert source.read_bytes() == before


def test_a_build_killed_between_two_renames_finishes_the_others(options, monkeypatch):
    renamed = []

    def killed_after_two(path, name):
        if len(renamed) == 2:
            raise KeyboardInterrupt
        renamed.append(name)
        path.rename(name)

    with monkeypatch.context() as patched:
        patched.setattr(building, "move_into_place", killed_after_two)
        with pytest.raises(KeyboardInterrupt):
            build(options)
        settings = (options.partial / "settings.json").stat()
        with pytest.raises(KeyboardInterrupt):
            build(replace(options, on_bad_record="skip"))
        assert (options.partial / "settings.json").stat().st_ino == settings.st_ino
    assert renamed == [bin_of(options.output), tokenizer_of(options.output)]
    assert not idx_of(options.output).exists()
    build(options)
    assert len(documents_of(options.output)) == 4
    assert not options.partial.exists()


def test_a_second_build_to_the_same_output_is_refused_while_one_runs(options):
    class Curious(Watcher):
        message = None

        def on_progress(self, *_):
            try:
                build(options)
            except UsageError as error:
                self.message = error.message

    watcher = Curious()
    build(options, watcher)
    assert watcher.message == f"another build of {options.output} is running"
    assert len(documents_of(options.output)) == 4


def test_a_full_disk_gives_one_error_and_the_build_resumes_once_there_is_space(options, tmp_path):
    source = write_lines(tmp_path / "large.jsonl", [f"{number} " * 200 for number in range(3000)])
    large = replace(options, inputs=(source,))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(RampcliError, match="cannot write") as full:
            build(large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (full.value.exit_code, full.value.__cause__.errno) == (1, errno.EFBIG)
    assert left_in(options.output.parent) == {"corpus.building"}
    assert build(large).manifest["documents"] == 3000


def test_a_killed_worker_gives_one_error_and_the_build_can_be_resumed(
    options, tmp_path, monkeypatch
):
    source = write_lines(
        tmp_path / "large.jsonl", [f"words of document {number} " * 400 for number in range(250)]
    )
    build(replace(options, tokenizer=None, train_bpe=280))
    large = replace(
        options,
        inputs=(source,),
        output=tmp_path / "large",
        tokenizer=str(tokenizer_of(options.output)),
        workers=2,
    )

    # So many chunks that most of them are not worked on before the first one is written.
    monkeypatch.setattr(building, "Reader", partial(records.Reader, chunk_bytes=100_000))

    others = {*active_children()}  # other tests' ranks live on

    class Killer(Watcher):
        def on_progress(self, *_):
            for worker in {*active_children()} - others:
                worker.kill()

    with pytest.raises(RampcliError, match="a worker process died") as died:
        build(large, Killer())
    assert died.value.exit_code == 1
    assert not idx_of(large.output).exists()
    assert build(large).manifest["documents"] == 250


def test_the_memory_of_a_build_does_not_grow_with_its_input(tmp_path):
    line = json.dumps({"text": "some words that are said again and again " * 100}) + "\n"
    peaks = []
    for megabytes in (8, 60):
        (tmp_path / "in.jsonl").write_text(line * (megabytes * 1_000_000 // len(line)))
        probe = (
            "from pathlib import Path\n"
            "from rampcli.data.building.build import build\n"
            "from rampcli.data.building.options import BuildOptions\n"
            f"inputs, output = (Path('in.jsonl'),), Path('out{megabytes}')\n"
            "build(BuildOptions(inputs=inputs, output=output, tokenizer='bytes', workers=1))\n"
            "status = open('/proc/self/status')\n"
            "print(*[line.split()[1] for line in status if line.startswith('VmHWM')])\n"
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


def test_lengths_and_types_match_the_tokens(options):
    build(options)
    file = IndexedFile.open(options.output)
    assert file.tokens.dtype == np.uint16
    assert file.lengths.sum() == len(file.tokens)
    assert manifest_of(options.output).read_text().startswith("{\n")
