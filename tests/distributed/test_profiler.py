"""Profiles of some steps, on several ranks and over interruptions."""

import gzip
import json

from tiny_runs import Run

WORDS = [
    "model.rampup_batch_size=null",
    "model.global_batch_size=4",
    "data.micro_batch_size=1",
    "trainer.val_samples=0",
]


def names_in(run: Run, file: str) -> set[str]:
    """Returns the names of the events in a trace, as Perfetto reads it."""
    with gzip.open(run.path / file, "rt") as trace:
        return {event["name"] for event in json.load(trace)["traceEvents"]}


def test_each_chosen_rank_writes_a_trace_of_the_steps_and_training_is_the_same(run, tmp_path):
    words = [*WORDS, "trainer.max_samples=16"]
    run.workers(2, *words, "profile.steps=[2,3]", "profile.ranks=[0,1]")
    found = run.events_of("profile")
    assert [(row["rank"], row["steps"], row["step"]) for row in found] == [
        (0, [2, 3], 3),
        (1, [2, 3], 3),
    ]
    for row in found:
        (file,) = row["files"]
        names = names_in(run, file)
        assert {name for name in names if name.startswith("step ")} == {"step 2", "step 3"}
        assert any(name.startswith("autograd::engine") for name in names)
        assert any(name.startswith("Optimizer.step") for name in names)
        times = [operator["self_cpu_s"] for operator in row["operators"]]
        assert times == sorted(times, reverse=True)
        assert len(times) == 10
        assert 0 < row["exchange_share"] < 1
        assert not any(operator["name"].startswith("step ") for operator in row["operators"])
    without = Run(tmp_path / "without")
    without.workers(2, *words)
    assert [(row["loss"], row["grad_norm"]) for row in run.rows] == [
        (row["loss"], row["grad_norm"]) for row in without.rows
    ]


def test_processes_that_begin_or_end_inside_the_window_profile_their_part_of_it(run):
    words = [*WORDS, "profile.steps=[3,5]"]
    run.workers(1, *words, "trainer.max_samples=8")
    assert run.events_of("profile") == []
    ended = run.pretrain(*words, "trainer.max_samples=16")
    assert "most expensive operators of steps 3 to 4 on rank 0:" in ended.stdout
    assert run.events_of("profile")[0]["operators"][0]["name"] in ended.stdout
    assert f"profile: {run.path}/profile/steps_3-4.rank_0.json.gz" in ended.stdout
    for samples in (24, 28):
        run.workers(1, *words, f"trainer.max_samples={samples}")
    assert [row["steps"] for row in run.events_of("profile")] == [[3, 4], [5, 5]]
    assert "most expensive" not in run.pretrain(*words, "trainer.max_samples=28").stdout
    assert {path.name for path in run.directory.profile.iterdir()} == {
        "steps_3-4.rank_0.json.gz",
        "steps_5-5.rank_0.json.gz",
    }


def test_a_profile_that_cannot_be_written_gives_a_warning_and_training_goes_on(run, tmp_path):
    run.directory.claim()
    (tmp_path / "elsewhere").mkdir()
    run.directory.profile.symlink_to(tmp_path / "elsewhere")
    run.workers(1, *WORDS, "profile.steps=[1,1]", "trainer.max_samples=8")
    (fault,) = run.events_of("fault")
    assert "rank 0 cannot write its profile" in fault["reason"]
    assert len(run.rows) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []
