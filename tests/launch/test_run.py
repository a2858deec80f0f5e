import json
from collections.abc import Sequence

import pytest

from rampcli import llm
from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides
from rampcli.errors import ForeignCheckpointError, NoCheckpointError, UsageError
from rampcli.launch.run import run, write_run_files
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import consumed_samples
from run_files import leave_checkpoint
from tests.prompts import PROMPT_WORDS


def tiny(tmp_path, *words: str, **options) -> Resolved:
    words = [f"run_dir={tmp_path}/run", "trainer.accelerator=cpu", *words]
    return resolve(apply_overrides(llm.from_factory("llama3_tiny"), words), **options)


@pytest.fixture
def resolved(tmp_path) -> Resolved:
    return tiny(tmp_path)


def leave_checkpoint_of(
    resolved: Resolved, *, consumed_samples: int, without: Sequence[str] = (), **changed
) -> RunDirectory:
    directory = RunDirectory(resolved.run_dir)
    settings = snapshot.identity(resolved.config) | changed
    settings = {key: value for key, value in settings.items() if key not in without}
    leave_checkpoint(directory, consumed_samples=consumed_samples, settings=settings)
    directory.mark()
    return directory


def test_a_complete_run_is_not_started_again(resolved):
    leave_checkpoint_of(resolved, consumed_samples=resolved.plan.end_sample)
    outcome = run(resolved)
    assert (outcome.status, outcome.started, outcome.exit_code) == ("complete", False, 0)
    assert sorted(path.name for path in resolved.run_dir.iterdir()) == [".rampcli", "checkpoints"]


def test_a_checkpoint_of_another_text_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "mine.txt").write_text("0123456789" * 1000)
    words = ("data=text", f"data.path={tmp_path}/mine.txt", "trainer.val_samples=0")
    resolved = tiny(tmp_path, *words)
    leave_checkpoint_of(resolved, consumed_samples=8)
    with pytest.raises(ForeignCheckpointError, match="another corpus"):
        run(resolved)
    assert sorted(path.name for path in resolved.run_dir.iterdir()) == [".rampcli", "checkpoints"]


@pytest.mark.parametrize(
    ("key", "theirs"),
    [
        ("seed", 1),
        ("model.hidden_size", 64),
        ("model.rampup_batch_size", None),
        ("data.source", "mock"),
        ("data.task", "sort"),
        ("data.task_digits", 5),
        ("data.response_end", "x"),
        ("data.chat_template", "none"),
        ("optim.optimizer", "adamw"),
        ("rl.generations_per_prompt", 8),
        ("rl.temperature", 0.5),
        ("rl.top_k", 3),
        ("rl.top_p", 0.5),
        ("rl.max_response_tokens", 7),
        ("rl.reward", "contains"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused_with_the_difference(
    resolved, key, theirs
):
    leave_checkpoint_of(resolved, consumed_samples=8, **{key: theirs})
    with pytest.raises(ForeignCheckpointError, match=f"{key}={theirs}") as refused:
        run(resolved)
    assert refused.value.exit_code == 4


def test_a_setting_newer_than_the_checkpoint_counts_as_its_default(tmp_path):
    newer = (
        "model.step_batch_size_schedule",
        "rampup.decrease_batch_size_if_needed",
        "data.task",
        "data.task_digits",
        "data.response_end",
        "data.chat_template",
    )
    resolved = tiny(tmp_path)
    leave_checkpoint_of(resolved, consumed_samples=resolved.plan.end_sample, without=newer)
    assert run(resolved).status == "complete"
    with pytest.raises(
        ForeignCheckpointError, match=r"rampup\.decrease_batch_size_if_needed=False \(here True\)"
    ):
        run(tiny(tmp_path, "rampup.decrease_batch_size_if_needed=true"))


RL = ("rl=grpo", *PROMPT_WORDS, "rl.reward=contains")


@pytest.mark.parametrize(
    ("words", "without", "changed"),
    [
        ([], "optim.optimizer", []),
        (RL, "rl.", []),
        (
            RL,
            None,
            [
                "rl.clip_high=0.28",
                "rl.average=length",
                "rl.micro_batch_size=16",
                "rl.reward_deadline_s=1",
            ],
        ),
        (
            [],
            None,
            [
                "optim.lr=0.5",
                "trainer.num_nodes=4",
                "rampup.node_policy=best",
                "data.micro_batch_size=1",
                "schedule.decay_style=wsd",
            ],
        ),
    ],
    ids=["no optimizer", "no responses", "losses of reinforcement learning", "neither of tensors"],
)
def test_settings_that_were_not_recorded_or_affect_neither_tensors_nor_samples_may_change_on_resume(
    tmp_path, words, without, changed
):
    resolved = tiny(tmp_path, *words)
    keys = snapshot.identity(resolved.config)
    unrecorded = [key for key in keys if without is not None and key.startswith(without)]
    leave_checkpoint_of(resolved, consumed_samples=resolved.plan.end_sample, without=unrecorded)
    assert run(tiny(tmp_path, *words, *changed)).status == "complete"


def resuming(tmp_path, *words: str) -> Resolved:
    """Resolves the same run from its newest checkpoint."""
    return tiny(
        tmp_path,
        *words,
        consumed_samples_in=lambda path: consumed_samples(RunDirectory(path)),
    )


def test_a_run_resumes_from_its_newest_checkpoint_and_earlier_stages_are_not_checked(tmp_path):
    words = ["rampup.node_policy=fixed", "trainer.num_nodes=4"]
    with pytest.raises(
        UsageError, match=r"batches 4 \(stage 0\), 8 \(stage 1\) and 12 \(stage 2\)"
    ):
        resuming(tmp_path, *words)
    last = tiny(tmp_path).plan.stages[-1]
    leave_checkpoint_of(tiny(tmp_path), consumed_samples=last.first_sample)
    resolved = resuming(tmp_path, *words)
    assert [stage.global_batch_size for stage in resolved.plan.passed] == [4, 8, 12]
    assert resolved.plan.stage_at(last.first_sample).num_nodes == 4
    assert [stage.global_batch_size for stage in resolved.plan.stages] == [16]


def test_a_run_is_described_before_it_starts(tmp_path):
    directory = leave_checkpoint_of(
        tiny(tmp_path), consumed_samples=tiny(tmp_path).plan.stages[-1].first_sample
    )
    resolved = resuming(tmp_path, "rampup.node_policy=fixed", "trainer.num_nodes=4")
    write_run_files(directory, resolved, ["trainer.num_nodes=4", "name=a b"])
    assert snapshot.read(directory.config) == resolved.config
    assert (directory.path / "overrides.txt").read_text() == "trainer.num_nodes=4\nname=a b\n"
    plan = json.loads((directory.path / "plan.json").read_text())
    assert plan == resolved.plan.to_json()
    assert [stage["num_nodes"] for stage in plan["stages"]] == [None, None, None, 4]


@pytest.mark.parametrize("source", ["indexed", "text"])
def test_missing_data_files_are_refused_before_anything_is_written(source, tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        run(tiny(tmp_path, f"data={source}", f"data.path={tmp_path / 'nowhere'}"))
    assert not (tmp_path / "run").exists()


def test_resume_must_requires_a_checkpoint(tmp_path):
    with pytest.raises(NoCheckpointError) as refused:
        run(tiny(tmp_path, "resume=must"))
    assert refused.value.exit_code == 5
    assert not (tmp_path / "run").exists()


def test_resume_never_refuses_a_checkpoint(tmp_path):
    resolved = tiny(tmp_path, "resume=never")
    leave_checkpoint_of(resolved, consumed_samples=8)
    with pytest.raises(UsageError, match="step 7"):
        run(resolved)


@pytest.mark.parametrize(
    ("axis", "size"), [("tensor", 3), ("pipeline", 3), ("context", 3), ("virtual_pipeline", 2)]
)
def test_a_split_that_does_not_divide_is_refused_before_anything_is_written(tmp_path, axis, size):
    words = [
        "trainer.num_nodes=1",
        "trainer.devices=3",
        "trainer.max_samples=12",
        "model.rampup_batch_size=null",
        "model.global_batch_size=12",
    ]
    with pytest.raises(UsageError, match=rf"parallel\.{axis}_parallel_size={size}"):
        run(tiny(tmp_path, *words, f"parallel.{axis}_parallel_size={size}"))
    assert not (tmp_path / "run").exists()
