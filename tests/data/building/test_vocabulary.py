import gzip
import json
from dataclasses import replace
from functools import partial

import pytest
from tokenizers import Tokenizer

from built_corpora import TEXTS, documents_of, texts_of, write_lines
from rampcli.data.building import build as building
from rampcli.data.building import records
from rampcli.data.building import vocabulary as making_tokenizers
from rampcli.data.building.build import build
from rampcli.data.building.partial import Watcher
from rampcli.data.building.streams import find_cut
from rampcli.data.indexed import bin_of, tokenizer_of
from rampcli.data.tokenizer import END_OF_TEXT, open_tokenizer
from rampcli.errors import UsageError


def test_a_cut_after_a_line_changes_no_token_of_gpt_2(options):
    build(replace(options, tokenizer=None, train_bpe=280))
    tokenizer = open_tokenizer(tokenizer_of(options.output))
    text = "some words\n    indented\n\nand a paragraph\nwith lines\n" * 4
    cut = find_cut(text.encode())
    assert (
        tokenizer.encode(text[:cut]).ids + tokenizer.encode(text[cut:]).ids
        == tokenizer.encode(text).ids
    )


def test_text_that_looks_like_a_special_token_stays_text(options, tmp_path):
    build(replace(options, tokenizer=None, train_bpe=280))
    text = f"before {END_OF_TEXT} after"
    source = write_lines(tmp_path / "sly.jsonl", [text])
    sly = replace(
        options,
        inputs=(source,),
        output=tmp_path / "sly",
        tokenizer=str(tokenizer_of(options.output)),
    )
    build(sly)
    (tokens,) = documents_of(sly.output)
    assert [number for number, token in enumerate(tokens) if token == 0] == [len(tokens) - 1]
    assert texts_of(sly.output) == [text + END_OF_TEXT]


@pytest.mark.parametrize(("eod", "ends"), [(None, []), ("none", []), ("z", [122])])
def test_a_document_ends_with_the_requested_token(options, eod, ends):
    manifest = build(replace(options, eod=eod)).manifest
    assert documents_of(options.output)[0] == [*TEXTS[0].encode(), *ends]
    assert (manifest["eod"], manifest["eod_token"]) == ((122, "z") if ends else (None, None))


def test_merges_of_a_large_corpus_are_learnt_from_every_nth_chunk(options, monkeypatch, tmp_path):
    write_lines(tmp_path / "many.jsonl", ["seldom words here"] * 30 + ["others over there"] * 30)
    monkeypatch.setattr(building, "Reader", partial(records.Reader, chunk_bytes=64))
    monkeypatch.setattr(making_tokenizers, "TRAINING_BYTES", 1000)
    many = replace(options, inputs=(tmp_path / "many.jsonl",), tokenizer=None, train_bpe=290)
    build(many)
    vocabulary = Tokenizer.from_file(str(tokenizer_of(many.output))).get_vocab()
    assert {"seldom", "others"} <= set(vocabulary)


class Counter(Watcher):
    """Counts chunks of inputs before encoding; can raise KeyboardInterrupt after some."""

    def __init__(self, most: int | None = None) -> None:
        self.most, self.chunks = most, 0
        self.phases, self.notes = [], []

    def on_phase(self, name, _):
        self.phases.append(name)

    def on_note(self, line):
        self.notes.append(line)

    def on_progress(self, _, written):
        if written is None and self.phases[-1] != "learning merges":
            self.chunks += 1
            if self.chunks == self.most:
                raise KeyboardInterrupt


@pytest.fixture
def options(options, in_small_chunks):  # noqa: ARG001
    """Each document is a chunk of its own, and one file is compressed."""
    lines = "".join(json.dumps({"text": f"{chr(0x100 + n)} document {n}"}) + "\n" for n in range(9))
    (options.inputs[0] / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return options


CHARS, BPE = {"tokenizer": "chars"}, {"tokenizer": None, "train_bpe": 290}


@pytest.mark.parametrize(
    ("changes", "training_bytes"),
    [(CHARS, 0), ({**CHARS, "workers": 2}, 0), (BPE, 256 << 20), (BPE, 100)],
)
def test_interrupted_passes_resume_and_give_the_same_corpus(
    options, changes, training_bytes, monkeypatch
):
    monkeypatch.setattr(making_tokenizers, "TRAINING_BYTES", training_bytes)
    changed = replace(options, **changes)
    whole, watcher = (
        replace(changed, output=options.output.with_name("whole"), workers=1),
        Counter(),
    )
    build(whole, watcher)
    read = 0
    for chunks in (1, 3, 2, 5, 4):
        stopped = Counter(chunks)
        with pytest.raises(KeyboardInterrupt):
            build(changed, stopped)
        read += stopped.chunks
    last = Counter()
    build(changed, last)
    assert last.chunks > 0
    assert last.notes[0].startswith(f"resuming: {last.phases[0]}, ")
    assert read + last.chunks == watcher.chunks
    for path_of in (bin_of, tokenizer_of):
        assert path_of(changed.output).read_bytes() == path_of(whole.output).read_bytes()
    assert not changed.partial.exists()


def test_text_after_the_last_save_is_read_again(options):
    options = replace(options, **BPE)
    whole = replace(options, output=options.output.with_name("whole"))
    build(whole)
    with pytest.raises(KeyboardInterrupt):
        build(options, Counter(20))
    with (options.partial / "sample.jsonl").open("a") as file:
        file.write('"what came after the last save"')
    build(options)
    assert tokenizer_of(options.output).read_bytes() == tokenizer_of(whole.output).read_bytes()


def test_training_that_was_interrupted_reads_no_input_again(options, monkeypatch):
    options = replace(options, **BPE)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(making_tokenizers.tokenizers, "train_bpe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(options)
    watcher = Counter()
    build(options, watcher)
    assert watcher.chunks == 0
    assert watcher.phases == ["sampling text", "learning merges", "encoding"]


@pytest.mark.parametrize("tokenizer", [CHARS, BPE])
def test_a_pass_begins_anew_with_other_inputs_or_options(options, tokenizer):
    with pytest.raises(KeyboardInterrupt):
        build(replace(options, **CHARS), Counter(12))
    if tokenizer == CHARS:
        write_lines(options.inputs[0] / "a.jsonl", ["another text"])
    watcher, counter = Counter(), Counter()
    changed = replace(options, **tokenizer)
    whole = replace(changed, output=options.output.with_name("whole"))
    build(changed, watcher)
    build(whole, counter)
    assert watcher.chunks == counter.chunks
    assert tokenizer_of(changed.output).read_bytes() == tokenizer_of(whole.output).read_bytes()
    reason = "a.jsonl has changed" if tokenizer == CHARS else "--tokenizer was chars and is now bpe"
    assert reason in watcher.notes[0]
    assert watcher.notes[0].endswith("; the build begins again")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gathered.json", lambda _: "{", "gathered.json is damaged"),
        (
            "gathered.json",
            lambda saved: saved.replace('"input": ', '"input": 99'),
            r"gathered.json is damaged: there is no input 99\d",
        ),
        (
            "gathered.json",
            lambda saved: saved.replace('"characters": "', r'"characters": "\ud800'),
            "gathered.json is damaged: characters are not valid Unicode",
        ),
        ("sample.jsonl", lambda _: "", "shorter than"),
        ("sample.jsonl", lambda saved: "x" * len(saved.encode()), "sample.jsonl is damaged"),
        (
            "sample.jsonl",
            lambda saved: r'"\ud800"' + "\n" + saved,
            "sample.jsonl is damaged: a text is not valid Unicode",
        ),
    ],
)
def test_damaged_progress_of_a_pass_is_refused(options, name, content, message):
    options = replace(options, **BPE)
    with pytest.raises(KeyboardInterrupt):
        build(options, Counter(20))
    path = options.partial / name
    path.write_text(content(path.read_text()))
    with pytest.raises(UsageError, match=message):
        build(options)
