"""Runs whose output is closed, whose checkpoints were deleted, or whose settings change."""

import json
import shlex
import subprocess

import pytest

from commands import run_command
from rampcli.runs.manifest import complete_checkpoints
from rampcli.runs.rows import read_rows
from tiny_runs import Run, environment

TEXTS = {"a": "abcabc" * 200, "b": "The quick brown fox. " * 60, "c": "12345 " * 200}
WORDS = ["model.rampup_batch_size=null", "trainer.num_nodes=1", "trainer.val_samples=0"]


@pytest.fixture(scope="module")
def unread(tmp_path_factory):
    """A run whose output is closed before it trains, and how its command ended."""
    run = Run(tmp_path_factory.mktemp("unread") / "run")
    command = shlex.join(run.command(*WORDS, "trainer.max_samples=8_000_000"))
    piped = f"set -o pipefail; {command} | sed /^data/q"
    return run, subprocess.run(
        ["bash", "-c", piped], env=environment(), text=True, capture_output=True, check=False
    )


def test_a_run_whose_output_is_closed_saves_and_reports_it(unread):
    run, done = unread
    assert done.returncode == 75, done.stderr
    assert "error: standard output was closed; stopped after" in done.stderr
    assert (run.state["status"], len(complete_checkpoints(run.directory))) == ("preempted", 1)


def test_a_run_whose_checkpoints_were_deleted_starts_over_and_keeps_its_old_metrics(
    unread,
):
    run, _ = unread
    before = run.directory.metrics.read_text()
    for checkpoint in complete_checkpoints(run.directory):
        run.directory.remove_tree(checkpoint.path)
    done = run.pretrain(*WORDS, "trainer.max_samples=16")
    assert done.returncode == 0, done.stderr
    aside = run.path / "metrics.1.jsonl"
    assert "has no checkpoint: the run starts again at step 0; its old metrics" in done.stdout
    assert aside.read_text() == before
    assert [row["step"] for row in run.rows] == [1, 2]
    assert [json.loads(line)["step"] for line in before.splitlines()] == [
        row["step"] for row in read_rows(aside)
    ]


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """A complete run of two steps."""
    run = Run(tmp_path_factory.mktemp("changed") / "run")
    words = [*WORDS, "optim.warmup_samples=1", "trainer.max_samples=16", "optim.lr=0.002"]
    done = run.pretrain(*words)
    assert done.returncode == 0, done.stderr
    return run, words


def test_a_complete_run_is_shown_with_the_settings_it_was_trained_with(two_steps):
    run, words = two_steps
    before = run.directory.config.read_text()
    again = run.pretrain(*words[:-1], "optim.lr=0.001").stdout
    assert "note: this run was trained with optim.lr=0.002, not optim.lr=0.001" in again
    assert "already complete" in again
    assert "note:" not in run.pretrain(*words).stdout
    assert run.directory.config.read_text() == before


def test_every_setting_that_changes_on_a_resume_is_said_and_recorded(two_steps):
    run, words = two_steps
    resumed = run.pretrain(*words, "trainer.max_samples=24", "optim.weight_decay=0").stdout
    told = [line for line in resumed.splitlines() if line.startswith(("note: ", "warning: "))]
    assert told[:2] == [
        "note: trainer.max_samples changes from 16 to 24 after step 2",
        "note: optim.weight_decay changes from 0.1 to 0.0 after step 2",
    ]
    assert told[2].startswith("warning: the learning rate jumps: step 2 had 3.00e-04, and has ")
    assert [row["setting"] for row in read_rows(run.directory.events) if "setting" in row] == [
        "trainer.max_samples",
        "optim.weight_decay",
    ]
    report = run_command(["report", str(run.path)]).stdout
    assert "optim.weight_decay changed from 0.1 to 0.0 after step 2" in report
    assert "warning: the learning rate jumps" in report
    shown = json.loads(run_command(["report", str(run.path), "--json"]).stdout)["runs"][0]
    assert [(one["step"], one["old"], one["new"]) for one in shown["changes"]] == [
        (2, "16", "24"),
        (2, "0.1", "0.0"),
    ]


@pytest.fixture(scope="module")
def blended(tmp_path_factory):
    """Starts runs over texts, whose weights never change: a loss tells which samples were read."""
    folder = tmp_path_factory.mktemp("blended")
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
    still = ["optim.lr=0", "optim.min_lr=0", "optim.warmup_samples=0", "model.vocab_size=256"]

    def train(name, steps, *blend):
        run = Run(folder / name)
        parts = [part if isinstance(part, int) else folder / part for part in blend]
        data = ["data=text", f"data.blend=[{','.join(map(str, parts))}]"]
        return run, run.pretrain(*WORDS, *still, *data, f"trainer.max_samples={8 * steps}")

    return train


def test_samples_after_a_change_of_weights_are_those_of_the_new_weights(blended):
    whole, _ = blended("whole", 4, 7, "a", 1, "b")
    blended("changed", 2, 1, "a", 1, "b")
    changed, resumed = blended("changed", 4, 7, "a", 1, "b")
    assert resumed.returncode == 0, resumed.stderr
    losses, expected = ([row["loss"] for row in run.rows] for run in (changed, whole))
    assert losses[2:] == pytest.approx(expected[2:], rel=1e-5)
    assert losses[:2] != pytest.approx(expected[:2], rel=1e-5)
    (note,) = [line for line in resumed.stdout.splitlines() if "data.blend changes" in line]
    assert note.endswith("after step 2; sample 16 and later ones are those of the new blend")


@pytest.mark.parametrize(
    "blend",
    [(1, "b", 7, "a"), (7, "a", 1, "c"), (7, "a", 1, "b", 1, "c"), (7, "a")],
    ids=["other order", "other corpus", "more", "fewer"],
)
def test_other_corpora_are_refused_whatever_their_weights(blended, blend):
    blended("refused", 1, 7, "a", 1, "b")
    _, resumed = blended("refused", 2, *blend)
    assert resumed.returncode == 4
    assert "was trained on another corpus than this run reads" in resumed.stderr
