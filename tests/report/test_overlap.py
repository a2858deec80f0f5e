"""A plan says what overlap saves; a run says how long its steps took next to the prediction."""

import json

import pytest

from rampcli import llm
from rampcli.batch.overlap import overlapped_s
from rampcli.config.compose import apply_overrides
from rampcli.planning.resolve import resolve
from rampcli.report.overlap import overlap_lines, overlap_result
from rampcli.runs.columns import Columns
from rampcli.runs.directory import RunDirectory
from run_files import metrics_row


@pytest.fixture
def lines(tmp_path):
    def described(*words, micro="64", rows=()):
        run = RunDirectory(tmp_path)
        run.metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        words = ["rl=grpo", f"run_dir={tmp_path}", f"rl.micro_batch_size={micro}", *words]
        resolved = resolve(apply_overrides(llm.from_factory("sort_digits"), words))
        (phase,) = resolved.phases
        return overlap_lines(phase, phase.pairs(resolved.plan.stages[0]))

    return described


def row(**facts):
    times = {"rollout_s": 0.4, "training_s": 0.6, "predicted_s": 0.65, "step_time_s": 0.7}
    return metrics_row(**{"reward": 0.5, "pairs": 512, **times, **facts})


def columns_of(run):
    columns = Columns(run.metrics)
    columns.read()
    return {name: columns[name] for name in columns}


def test_without_ranks_that_generate_all_processes_take_turns(lines):
    assert lines() == ["rollout and training take turns on all processes"]


def test_the_share_that_overlap_saves_at_best_follows_from_the_rollouts(lines):
    (line,) = lines("trainer.devices=2", "rl.rollout_ranks=1")
    # 8 rollouts: (1 + 1/8) / 2 of a step remains.
    assert "with 8 rollouts per rank and step, that saves up to 44% of a step" in line


@pytest.mark.parametrize(
    ("devices", "generators", "micro", "saves"), [(2, 1, 512, 256), (4, 3, 256, 128)]
)
def test_overlap_that_saves_nothing_names_the_largest_micro_batch_that_saves(
    lines, devices, generators, micro, saves
):
    words = [f"trainer.devices={devices}", f"rl.rollout_ranks={generators}"]
    (line,) = lines(*words, micro=micro)
    assert "that saves nothing: training starts once all are generated" in line
    assert f"; rl.micro_batch_size={saves} saves up to 25% of a step" in line
    (line,) = lines(*words, micro=saves)
    assert "that saves up to 25% of a step" in line


def test_the_micro_batch_that_lets_a_ramp_overlap_divides_all_its_stages(lines):
    """Stages of 16 and 24 prompts of 16 generations: both are multiples of 8 x 16 = 128 pairs."""
    words = ["trainer.devices=2", "rl.rollout_ranks=1", "rl.prompts_per_step=24"]
    words.append("model.rampup_batch_size=[16,8,100]")
    (line,) = lines(*words, micro="null")
    assert "; rl.micro_batch_size=128 saves" in line
    assert "saves up to" in lines(*words, micro=128)[0]


def test_a_micro_batch_of_one_prompt_needs_more_prompts_to_overlap(lines):
    words = ["trainer.devices=2", "rl.rollout_ranks=1", "rl.prompts_per_step=1"]
    (line,) = lines(*words, micro="null")
    assert line.endswith("generated; overlap needs a larger rl.prompts_per_step")


def test_the_expected_step_moves_the_measured_work_to_the_processes_that_do_it(lines):
    """Two processes that took turns become one that generates and one that trains."""
    rows = [row(rollout_ranks=0, world_size=2, step_time_s=2.0)] * 3
    (_, measured) = lines("trainer.devices=2", "rl.rollout_ranks=1", rows=rows)
    expected = overlapped_s(0.8, 1.2, micro_batches=8, data_ranks=1, generators=1)
    assert measured == (
        "a step of this run has taken 2 s (median of the last 3);"
        f" {expected:.3g} s are expected with trainer.devices=2 rl.rollout_ranks=1"
    )


def test_steps_of_other_batches_predict_nothing(lines):
    assert len(lines(rows=[row(pairs=64, rollout_ranks=0)] * 3)) == 1


def test_a_run_that_overlapped_shows_its_steps_next_to_the_prediction(lines, tmp_path):
    lines(rows=[row(rollout_ranks=1)] * 3)
    result = overlap_result(columns_of(RunDirectory(tmp_path)))
    assert result.startswith("a step took 0.7 s, and 0.65 s are predicted for 0.4 s of rollout")
    lines(rows=[row(rollout_ranks=0)] * 3)
    assert overlap_result(columns_of(RunDirectory(tmp_path))) is None
