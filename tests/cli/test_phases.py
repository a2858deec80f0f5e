import json

import pytest

from commands import run_command
from rampcli.report.run_report import report_run
from rampcli.runs.manifest import complete_checkpoints
from rampcli.runs.record import read_run
from tiny_runs import Run, environment

WORDS = (
    *("model.rampup_batch_size=null", "model.global_batch_size=4", "trainer.max_samples=40"),
    *("checkpoint.every_steps=5", "checkpoint.keep_last=9", "data.audit_order=true"),
)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """A run without phases, with checkpoints of steps 5 and 10."""
    run = Run(tmp_path_factory.mktemp("runs") / "tiny")
    done = run.pretrain(*WORDS)
    assert done.returncode == 0, done.stderr
    return run


def phases(run: Run, *words: str):
    return run_command(["phases", str(run.path), *words], environment())


def test_a_phase_that_changes_nothing_goes_on_as_the_run_did(old):
    new = Run(old.path.parent / "same")
    words = ("--from", "steps:7", "--phase", "same", "model.global_batch_size=4")
    done = phases(old, *words, f"run_dir={new.path}")
    assert done.returncode == 0, done.stderr
    assert "from step 5 of" in done.stdout
    expected = [row for row in old.rows if row["step"] > 5]
    assert [row["step"] for row in new.rows] == [6, 7, 8, 9, 10]
    for key in ("loss", "lr", "consumed_tokens"):
        assert [row[key] for row in new.rows] == pytest.approx([row[key] for row in expected])
    assert [row["order_hash"] for row in new.rows] == [row["order_hash"] for row in expected]
    report = report_run(read_run(new.directory))
    assert report.to_json()["origin"] == {
        "run": str(old.path),
        "step": 5,
        "consumed_samples": 20,
    }
    assert [phase.is_inherited for phase in report.phases] == [True, False]
    again = phases(old, *words, f"run_dir={new.path}")
    assert (again.returncode, "already complete" in again.stdout) == (0, True)
    assert [one.step for one in complete_checkpoints(old.directory)] == [5, 10]


def test_a_dry_run_plans_the_new_phase_and_writes_nothing(old):
    words = ("--phase", "anneal", "until=samples:60", "optim.lr=1e-3", "name=annealed", "--dry-run")
    done = phases(old, *words, "--json")
    assert done.returncode == 0, done.stderr
    before, anneal = json.loads(done.stdout)["phases"]
    assert (before["name"], before["steps"], before["samples"]) == ("before", 10, 40)
    assert (anneal["name"], anneal["first_sample"], anneal["samples"]) == ("anneal", 40, 20)
    assert not (old.path.parent / "annealed").exists()


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (("trainer.max_steps=14",), [4]),
        (("phases.next.until=steps:15",), [5]),
        (("training.until=steps:15", "phases.last.until=steps:17"), [5, 2]),
        (("phases.last.until=steps:17", "until=steps:15"), [5, 2]),
    ],
)
def test_a_new_phase_comes_first_and_ends_where_a_word_says(old, words, steps):
    done = phases(old, *words, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    before, *new = json.loads(done.stdout)["phases"]
    assert (before["steps"], new[0]["name"]) == (10, "next")
    assert [one["steps"] for one in new] == steps


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--from", "steps:3"), 5, "--from steps:5"),
        (("--from", "soon"), 2, "--from=soon is not a position"),
        (("--phase", "a-b"), 2, "not a name"),
        (("optim.rate=3",), 2, "optim.rate"),
        (("--phase", "before"), 2, "a phase of this name"),
        (("phases.before.optim.lr=3", "until=1M"), 2, "phase before has ended"),
        (("trainer.max_steps=7",), 2, "the run ends before phase next"),
        (("seed=3", "until=1M"), 4, "seed=1234 (here 3)"),
        (("model.num_layers=1", "until=1M"), 4, "model.num_layers"),
        (("--json",), 2, "--dry-run --json"),
        (("until=steps:20", "average.merge=from:9"), 4, "from:640 for the weights from here on"),
    ],
)
def test_a_phase_that_cannot_begin_is_refused(old, words, code, said):
    done = phases(old, *words)
    assert done.returncode == code
    assert said in done.stderr
