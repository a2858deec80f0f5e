"""Bad input gets one clear message and exit code 2, without using much time."""

import os
import re
import subprocess
import sys

import pytest

from error_text import START, as_text
from hostile.laws import is_one_message, obeyed
from tests.cli.bad_input_page import PAGE, TABLE, line_of
from tests.cli.bad_inputs import BAD_INPUTS, FILE, SECTIONS, BadInput, give_files

SECRET = "hunter2-treasure"
LIBRARIES = ("hydra", "omegaconf", "antlr")
MOST_CPU_S = 5.0
"""A message takes a quarter of a second on a fast machine; a runaway command takes minutes."""
REAL = {
    "a global batch that does not divide over the ranks",
    "a mistyped key",
    "a YAML tag that constructs an object",
    "an environment variable in a file",
    "a run on more GPUs than the machine has",
    "a missing recipe",
}
"""Titles of the rows that are also run in a separate process."""


@pytest.fixture(scope="module")
def tables():
    """The lines of each table of the page, by topic."""
    topics = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {
        topic.partition("\n")[0]: topic.partition(TABLE)[2].splitlines(keepends=True)
        for topic in topics
    }


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def check_message(row, exit_code, stdout, stderr):
    assert exit_code == 2, stderr
    assert stdout == ""
    assert SECRET not in stderr
    typed = " ".join((*row.words, *map(str, row.files.values()))).lower()
    assert [
        name for name in ("traceback", *LIBRARIES) if name in stderr.lower() and name not in typed
    ] == []
    assert is_one_message(stderr)
    assert [character for character in stderr if obeyed(character)] == []
    assert "\n       try:    " in as_text(stderr)
    assert ("--json" in row.words) == stderr.startswith(START)


@pytest.mark.parametrize("row", BAD_INPUTS, ids=lambda row: row.title)
def test_bad_input_gets_one_clear_message_and_exit_code_2_and_writes_nothing(
    row: BadInput, rampcli, tables, tmp_path, monkeypatch
):
    monkeypatch.setenv("SECRET", SECRET)
    give_files(row, tmp_path)
    ended = rampcli(*row.words)
    check_message(row, ended.exit_code, ended.stdout, ended.stderr)
    assert files_in(tmp_path) == set(row.files)
    assert ended.cpu_s < MOST_CPU_S
    topic = next(topic for topic, rows in SECTIONS.items() if row in rows)
    assert line_of(row, ended.stderr) in tables[topic], "run `make docs` and commit what it writes"


def test_the_page_has_a_table_per_topic_and_a_line_per_row(tables):
    lines = {topic: len(rows) for topic, rows in tables.items()}
    assert lines == {topic: len(rows) for topic, rows in SECTIONS.items()}
    assert f"Each of these {len(BAD_INPUTS)} inputs" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "row", [row for row in BAD_INPUTS if row.title in REAL], ids=lambda row: row.title
)
def test_a_separate_process_prints_the_same_message(row: BadInput, tmp_path):
    give_files(row, tmp_path)
    environment = {**os.environ, "SECRET": SECRET, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "rampcli", *row.words]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    check_message(row, done.returncode, done.stdout, done.stderr)
    assert files_in(tmp_path) == set(row.files)


def test_rows_are_many_and_distinct():
    titles = {row.title for row in BAD_INPUTS}
    assert len(titles) == len(BAD_INPUTS) >= 60
    assert len({(row.words, str(row.files)) for row in BAD_INPUTS}) == len(BAD_INPUTS)
    written = re.findall(r"^  \S", FILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(written) == len(BAD_INPUTS)  # YAML keeps only the last of two rows with one title
    assert titles >= REAL


@pytest.fixture
def errors_of(refuse):
    """The first lines of the errors of a plan, without `error: `."""

    def run(*words, factory="llama3_8b"):
        lines = refuse("plan", "--factory", factory, *words).splitlines()
        return [line[len("error: ") :] for line in lines if line.startswith("error: ")]

    return run


def test_one_report_has_every_error_once(errors_of, tmp_path):
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "mine.yaml").write_text("lr: fast\nbeta1: 5\nlearning_rate: 1\n")
    errors = errors_of(
        "--config-dir",
        ".",
        "optim=mine",
        "modle.bias=1",
        "model.global_batch_size=510",
        "data=nothing",
    )
    assert errors == [
        "data=nothing: there is no conf/data/nothing.yaml",
        "there is no setting modle.bias",
        "optim.lr=fast is not a number",
        "there is no setting optim.learning_rate",
        "optim.beta1=5.0 is not below 1",
        "model.global_batch_size=510 does not divide into data.micro_batch_size=1"
        " x 4 data-parallel ranks = 4",
    ]


@pytest.mark.parametrize(
    ("words", "errors"),
    [
        (
            ["model.global_batch_size=many", "trainer.accumulate_grad_batches=3"],
            ["model.global_batch_size=many is not an integer"],
        ),
        (
            ["trainer.num_nodes=0", "model.global_batch_size=510"],
            ["trainer.num_nodes=0 is below 1"],
        ),
        (["optim.lr=fast", "optim.min_lr=5"], ["optim.lr=fast is not a number"]),
        (
            ["trainer.max_steps=many", "trainer.max_tokens=5"],
            ["trainer.max_steps=many is not an integer"],
        ),
        (
            ["data.global_batch_size=1024", "model.global_batch_size=510"],
            [
                "data.global_batch_size=1024 and model.global_batch_size=510"
                " are two spellings of one setting and differ"
            ],
        ),
        (
            ["model.rampup_batch_size=[256,100]", "model.global_batch_size=1000"],
            [
                "model.rampup_batch_size=[256,100] has 2 values; it takes three:"
                " [start batch size, increment, ramp-up samples]"
            ],
        ),
        (
            ["seed=1", "seed=2", "seed=-1"],
            ["seed is given twice: 1 and 2", "seed is given twice: 1 and -1"],
        ),
    ],
)
def test_a_wrong_key_is_reported_once_and_not_for_its_consequences(words, errors, errors_of):
    assert errors_of(*words) == errors


def test_errors_about_different_keys_are_all_reported(errors_of):
    words = [
        "trainer.max_steps=1",
        "trainer.max_samples=2",
        "trainer.devices=3",
        "name=a/b",
        "optim.min_lr=5",
        "model.num_query_groups=5",
    ]
    errors = errors_of(*words)
    assert [error.split()[0] for error in errors] == [
        "name='a/b'",
        "model.num_attention_heads=32",
        "optim.min_lr=5.0",
        "the",
        "3",
    ]


def test_wrong_words_are_reported_although_the_recipe_is_wrong_too(errors_of):
    assert errors_of("modle.bias=1", "seed=[1", factory="llama3_9b") == [
        "the bracket in seed=[1 is never closed",
        "--factory llama3_9b: there is no recipe llama3_9b",
        "there is no setting modle.bias",
    ]


def test_messages_about_long_words_are_short(errors_of):
    errors = errors_of(f"seed={'x' * 5000}", f"optim.lr={'9' * 5000}")
    assert len(errors) == 2
    assert max(map(len, errors)) < 300
