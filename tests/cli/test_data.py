"""`rampcli data` from the command line."""

import json
import os
import signal
from pathlib import Path

import pytest

from commands import Command, run_command
from processes import wait_until
from rampcli.cli.data_build import BuildProgress
from standing import stand_still_until


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"text": f"text {number}\x1b"}) + "\n" for number in range(20))
    )
    return "in.jsonl"


def test_a_build_prints_its_options_its_result_and_how_to_train_with_it(succeed, corpus):
    lines = succeed(
        "data", "build", corpus, "--output", "out/corpus", "--tokenizer", "bytes"
    ).splitlines()
    assert lines[0] == "tokenizer bytes with 256 tokens; end-of-document token: none"
    assert lines[1] == "20 documents, 150 tokens, 1.00 bytes per token"
    words = "data=indexed data.path=out/corpus name=corpus"
    assert lines[-1] == f"  rampcli pretrain --factory llama3_tiny {words}"


def test_repeating_a_build_says_that_the_corpus_exists(succeed, corpus):
    words = ["data", "build", corpus, "--output", "corpus", "--tokenizer", "chars"]
    succeed(*words)
    assert succeed(*words).startswith(
        "corpus.idx already exists, from the same inputs and options\n20 documents"
    )


def test_json_is_exactly_the_manifest(json_of, corpus, tmp_path):
    printed = json_of("data", "build", corpus, "--output", "corpus", "--tokenizer", "bytes")
    assert printed.pop("seconds") >= 0
    assert printed == json.loads((tmp_path / "corpus.json").read_text())


def test_bad_records_are_shown_and_listed(succeed, rampcli, corpus, tmp_path):
    with (tmp_path / corpus).open("a") as file:
        file.write("{}\n" * 9)
    words = ["data", "build", corpus, "--output", "corpus", "--tokenizer", "bytes"]
    stopped = rampcli(*words)
    assert stopped.exit_code == 2
    assert stopped.stderr.startswith("error: in.jsonl, line 21: no key text; the keys are: none\n")
    printed = succeed(*words, "--on-bad-record", "skip")
    assert printed.count("skipped in.jsonl, line") == 5
    assert "skipped 9 bad records: corpus.skipped.jsonl" in printed


def test_inspecting_prints_a_corpus_without_control_characters(succeed, json_of, corpus):
    succeed("data", "build", corpus, "--output", "corpus", "--tokenizer", "bytes")
    printed = succeed("data", "inspect", "corpus", "--verify")
    assert "documents         20\n" in printed
    assert "  4 to  7  10  " + "█" * 40 in printed
    assert r"text 0\x1btext 1\x1b" in printed
    assert "\x1b" not in printed
    assert printed.endswith("verified: no faults\n")
    assert json_of("data", "inspect", "corpus")["documents"] == 20


def test_damage_to_a_corpus_is_listed_with_exit_code_1(succeed, rampcli, corpus, tmp_path):
    succeed("data", "build", corpus, "--output", "corpus", "--tokenizer", "bytes")
    (tmp_path / "corpus.bin").write_bytes(b"\xff" * 300)
    ended = rampcli("data", "inspect", "corpus", "--verify")
    assert (ended.exit_code, len(ended.stdout.splitlines())) == (1, 3)
    assert all(line.startswith("fault: ") for line in ended.stdout.splitlines())
    assert (
        len(json.loads(rampcli("data", "inspect", "corpus", "--verify", "--json").stdout)["faults"])
        == 3
    )


def test_file_names_and_contents_are_printed_as_visible_characters(succeed, rampcli, tmp_path):
    name = "a\x1b[2J\u202eb"
    (tmp_path / f"{name}.jsonl").write_text('{"text": "a"}\n{"\\u001b[2J": 1}\n')
    words = ["data", "build", f"{name}.jsonl", "--output", name, "--tokenizer", "bytes"]
    printed = [
        rampcli(*words).stderr,
        succeed(*words, "--on-bad-record", "skip"),
        succeed(*words, "--on-bad-record", "skip"),
    ]
    manifest = tmp_path / f"{name}.json"
    manifest.write_text(
        json.dumps(json.loads(manifest.read_text()) | {"tokenizer": name, "eod_token": name})
    )
    printed.append(succeed("data", "inspect", name))
    (tmp_path / f"{name}.bin").unlink()
    printed.append(rampcli("data", "inspect", name).stderr)
    (tmp_path / f"{name}.bin").touch()
    printed.append(rampcli("data", "inspect", name, "--verify").stdout)
    for text in printed:
        assert r"a\x1b[2J\u202eb" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def stand_still_within_the_build() -> None:
    """Starts a process group whose build stands still after a chunk until a signal comes."""
    os.setsid()
    on_progress = BuildProgress.on_progress

    def called(progress, consumed_bytes, written):
        if written is not None:
            Path("stands").touch()
            stand_still_until(lambda: progress._signal is not None)
        on_progress(progress, consumed_bytes, written)

    BuildProgress.on_progress = called


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_saves_the_build_and_the_same_command_resumes_it(tmp_path, number, exit_code):
    (tmp_path / "in.jsonl").write_text(
        (json.dumps({"text": "words and more words " * 3000}) + "\n") * 120
    )
    (tmp_path / "small.txt").write_text("words and more words")
    small = ["small.txt", "--output", "small", "--train-bpe", "257"]
    assert run_command(["data", "build", *small], cwd=tmp_path).returncode == 0
    words = ["data", "build", "in.jsonl", "--output", "corpus", "--workers", "2"]
    words += ["--tokenizer", "small.tokenizer.json"]
    running = Command(words, cwd=tmp_path, prepare=stand_still_within_the_build)
    wait_until((tmp_path / "stands").exists, running)
    os.killpg(running.pid, number) if number == signal.SIGINT else running.send_signal(number)
    printed, errors = running.communicate()
    assert (running.returncode, errors) == (exit_code, "")
    assert "progress is saved in corpus.building" in printed
    assert "resume with:\n  rampcli data build in.jsonl" in printed
    assert not (tmp_path / "corpus.idx").exists()
    assert json.loads((tmp_path / "corpus.building" / "progress.json").read_text())["documents"] > 0
    done = run_command(words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("resuming after ")
    assert "120 documents" in done.stdout
