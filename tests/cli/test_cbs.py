import json
import os
import shutil
import signal
from functools import partial

import pytest

from commands import Command, run_command
from processes import wait_until
from rampcli.cbs.folder import read_branches
from rampcli.errors import NoCheckpointError, UsageError
from rampcli.runs.directory import RunDirectory, runs_in
from rampcli.runs.manifest import complete_checkpoints
from tiny_runs import Run, environment

WORDS = (
    "model.rampup_batch_size=null",
    "model.global_batch_size=4",
    "optim.min_lr=1e-3",
    "trainer.max_samples=40",
    "checkpoint.every_steps=5",
)
AT = "20"
TOKENS = str(16 * 24)  # samples of 16 tokens: 6 steps of batch 4, 3 of batch 8


def files_of(run: RunDirectory) -> dict:
    """Content and time of each file of a run, without those of its branches."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in run.path.rglob("*")
        if path.is_file() and "cbs" not in path.relative_to(run.path).parts
    }


@pytest.fixture
def cbs(rampcli):
    """Runs `rampcli cbs` in this process. It must not train."""
    return lambda run, *words: rampcli("cbs", str(run.path), *words)


@pytest.fixture(scope="module")
def branched(tmp_path_factory):
    """A run, its files before, and the output of `rampcli cbs` for it."""
    run = Run(tmp_path_factory.mktemp("runs") / "tiny")
    done = run.pretrain(*WORDS)
    assert done.returncode == 0, done.stderr
    before = files_of(run.directory)
    words = ["--at", AT, "--multiples", "1,2", "--tokens", TOKENS, "--json"]
    done = run_command(["cbs", str(run.path), *words], environment())
    assert done.returncode == 0, done.stderr
    return run.directory, before, json.loads(done.stdout)


def test_branches_train_the_same_samples_and_are_compared_on_the_same_ones(branched):
    run, _, result = branched
    assert (result["consumed_samples"], result["samples"]) == (20, 24)
    assert [one["steps"] for one in result["branches"]] == [6, 3]
    assert [one["state"] for one in result["branches"]] == ["complete"] * 2
    for branch in result["branches"]:
        trained = Run(run.path / "cbs" / AT / f"multiple={branch['multiple']}")
        assert [row["step"] for row in trained.rows] == [
            5 + at + 1 for at in range(branch["steps"])
        ]
        assert trained.rows[-1]["consumed_samples"] == 44
        steps = branch["steps"]
        assert [row["lr"] for row in trained.rows] == pytest.approx(
            [branch["lr"] * (1 - taken / steps * (1 - 1 / steps)) for taken in range(1, steps + 1)]
        )
        (loss,) = trained.validations().values()
        assert branch["loss"] == pytest.approx(loss)
    first, second = result["branches"]
    assert second["lr"] == pytest.approx(first["lr"] * 2**0.5)
    assert second["difference"] == pytest.approx(second["loss"] - first["loss"])
    assert second["standard_error"] > 0
    assert result["critical_batch_size"] in (4, 8)
    assert read_branches(run) == [result]


def test_branches_of_a_run_with_phases_train_in_the_phase_of_the_checkpoint(tmp_path, succeed):
    run = Run(tmp_path / "phased")
    phases = ("phases.short.until=samples:16", "phases.long.until=samples:40")
    more = ("phases.long.data.sequence_length=32", "phases.long.optim.lr=2e-3")
    last = ("phases.last.until=samples:48", "phases.last.data.sequence_length=8")
    kept = ("trainer.max_samples=null", "checkpoint.keep_last=9")
    done = run.pretrain(*WORDS, *kept, *phases, *more, *last)
    assert done.returncode == 0, done.stderr
    command = ["cbs", str(run.path), "--at", AT, "--multiples", "1,2", "--tokens", str(32 * 24)]
    done = run_command([*command, "--json"], environment())
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["phase"], result["sequence_length"], result["samples"]) == ("long", 32, 24)
    assert [one["steps"] for one in result["branches"]] == [6, 3]
    one, two = (Run(run.path / "cbs" / AT / f"multiple={multiple}") for multiple in (1, 2))
    ended = run.rows[5:10]  # what the run took in the phase after the checkpoint
    assert [row["order_hash"] for row in one.rows[:5]] == [row["order_hash"] for row in ended]
    assert one.rows[0]["loss"] == ended[0]["loss"]
    assert two.rows[2]["consumed_tokens"] == one.rows[5]["consumed_tokens"]
    assert read_branches(run.directory) == [result]
    shown = succeed(*command, "--dry-run")
    assert "in phase long" in shown
    assert "phase long ends after 20 more samples" in shown


def test_the_run_stays_as_it_is(branched, succeed):
    run, before, _ = branched
    assert files_of(run) == before
    assert all(one.damage() is None for one in complete_checkpoints(run))
    assert [one.path for one in runs_in(run.path.parent)] == [run.path]
    for command in ("report", "status"):
        assert f"rampcli report {run.path}/cbs/{AT}\n" in succeed(command, str(run.path))
    assert files_of(run) == before


def test_the_same_command_prints_the_results_and_trains_nothing(branched, cbs):
    run, _, result = branched
    branches = [*map(RunDirectory, sorted((run.path / "cbs" / AT).glob("multiple=*")))]
    before = [files_of(branch) for branch in branches]
    done = cbs(run, "--at", AT, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, result)
    assert [files_of(branch) for branch in branches] == before


def test_a_report_of_branches_names_the_command_that_compares_them(branched, succeed):
    run, before, _ = branched
    printed = succeed("report", str(run.path / "cbs" / AT))
    assert "best" not in printed
    command = f"rampcli cbs {run.path} --at {AT} --dry-run"
    assert command in printed
    assert "critical batch: " in succeed(*command.split()[1:])
    assert files_of(run) == before


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("--exponent 1", f"--tokens {TOKENS} --exponent 0.5 --decay"),
        ("--constant", f"--tokens {TOKENS} --exponent 0.5 --decay"),
        ("--multiples 1,4", "--multiples 1,2"),
        ("--multiples 1,4,6", "--multiples 1,2,6"),
        (
            "--multiples 1,4 --tokens 9999",
            f"--tokens {TOKENS} --exponent 0.5 --decay --multiples 1,2",
        ),
    ],
)
def test_branches_of_other_options_do_not_mix_and_the_remedy_works(branched, cbs, words, remedy):
    run, _, _ = branched
    done = cbs(run, "--at", AT, *words.split(), "--dry-run")
    assert done.exit_code == 2
    assert remedy in done.stderr
    done = cbs(run, "--at", AT, *remedy.split(), "--dry-run")
    assert done.exit_code == 0, done.stderr


def test_branches_outlive_their_checkpoint_and_no_more_are_added(branched, cbs, tmp_path):
    run, _, result = branched
    copy = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    first, *_, newest = complete_checkpoints(copy)
    assert first.consumed_samples == int(AT)
    shutil.rmtree(first.path)
    done = cbs(copy, "--at", str(newest.consumed_samples - 1), "--dry-run", "--json")
    found = json.loads(done.stdout)
    assert found["consumed_samples"] == int(AT)
    assert found["critical_batch_size"] == result["critical_batch_size"]
    at, multiples = f"--at {AT}", "--multiples 1,3"
    done = cbs(copy, *at.split(), *multiples.split(), "--dry-run")
    assert done.exit_code == NoCheckpointError.exit_code
    for old, new in ((multiples, "--multiples 1,2"), (at, f"--at {newest.consumed_samples}")):
        assert new in done.stderr
        again = f"{at} {multiples}".replace(old, new)
        assert cbs(copy, *again.split(), "--dry-run").exit_code == 0


def test_a_checkpoint_that_is_not_there_is_refused_with_one_that_is(branched, cbs):
    run, _, _ = branched
    done = cbs(run, "--at", "3", "--dry-run")
    first = complete_checkpoints(run)[0]
    assert done.exit_code == NoCheckpointError.exit_code
    assert f"--at {first.consumed_samples}" in done.stderr


def test_a_dry_run_writes_nothing(branched, cbs):
    run, _, _ = branched
    before = sorted(os.listdir(run.path / "cbs"))
    done = cbs(run, "--multiples", "1,2", "--tokens", TOKENS, "--dry-run", "--json")
    assert done.exit_code == 0, done.stderr
    planned = json.loads(done.stdout)
    assert planned["consumed_samples"] == 40
    assert planned["hours_left"] == pytest.approx(2 * planned["hours_per_branch"])
    assert sorted(os.listdir(run.path / "cbs")) == before


def fail_in(name):
    """Lets the ranks of a branch fail, for the `prepare` of a command."""
    from rampcli.train.loop import Trainer

    run = Trainer.run

    def called(trainer):
        if trainer.config.name == name:
            raise UsageError("this branch fails")
        return run(trainer)

    Trainer.run = called


@pytest.fixture
def copied(branched, tmp_path):
    """A copy of the run without its branches."""
    run, _, _ = branched
    copy = shutil.copytree(run.path, tmp_path / "copy", ignore=shutil.ignore_patterns("cbs"))
    return RunDirectory(copy)


def start_at_once(run, *words, prepare=None):
    words = ["cbs", str(run.path), "--at", AT, "--at-once", "2", *words]
    return Command(words, environment(), prepare=prepare)


def test_branches_at_once_equal_those_in_turn_also_if_one_fails(branched, copied):
    run, _, result = branched
    words = ("--multiples", "1,2,3", "--tokens", TOKENS, "--json")
    command = start_at_once(copied, *words, prepare=partial(fail_in, "multiple=3"))
    output, _ = command.communicate()
    *branches, failed = json.loads(output)["branches"]
    assert (command.returncode, failed["state"]) == (1, "failed")
    varying = dict.fromkeys(("run_dir", "hours", "gpu_hours"))
    assert [one | varying for one in branches] == [one | varying for one in result["branches"]]
    for name in ("multiple=1", "multiple=2"):
        in_turn, at_once = (RunDirectory(one.path / "cbs" / AT / name) for one in (run, copied))
        (saved,), (expected,) = complete_checkpoints(at_once), complete_checkpoints(in_turn)
        assert saved.files == expected.files
        for file in saved.files:
            assert (saved.path / file).read_bytes() == (expected.path / file).read_bytes()


def test_ctrl_c_saves_all_branches_that_train_at_once(copied):
    command = start_at_once(copied, "--multiples", "1,2", "--tokens", str(16 * 8_000_000))
    branches = [Run(copied.path / "cbs" / AT / f"multiple={number}") for number in (1, 2)]
    wait_until(lambda: all(one.directory.metrics.exists() and one.rows for one in branches))
    command.send_signal(signal.SIGINT)
    output, errors = command.communicate()
    assert command.returncode == 130, errors
    assert f"rampcli cbs {copied.path} --at {AT} --at-once 2 resumes it" in output
    for branch in branches:
        assert branch.state["status"] == "preempted"
        saved = complete_checkpoints(branch.directory)[-1]
        assert saved.consumed_samples == branch.state["consumed_samples"] > int(AT)
