"""Phases of reinforcement learning: each trains with its own settings, and resumes as it was."""

import os
import shutil
import signal
from functools import partial

import numpy as np
import pytest

from once import make_once
from policy_runs import SAME_BITS, PolicyRun, assert_same_bits
from processes import children_of, wait_until
from rampcli.cli.base import Base
from rampcli.cli.composing import compose_rl
from rampcli.cli.continued_run import continue_run
from rampcli.data.prompts import open_prompts
from rampcli.errors import UsageError
from rampcli.rl.generator import Generator
from rampcli.rl.scorer import Scorer
from rampcli.runs.directory import RunDirectory
from standing import let_go, stand_still_before

PHASES = (
    "phases.first.until=steps:2",
    "phases.same.until=steps:3",
    "phases.other.until=samples:32",
    "phases.other.data.task=reverse",
    "phases.other.rl.prompts_per_step=4",
    "phases.other.rl.generations_per_prompt=2",
    "phases.other.rl.micro_batch_size=4",
    "phases.other.rl.max_response_tokens=2",
    "phases.other.rl.temperature=0.5",
    "phases.other.rl.samples_every_steps=1",
    "phases.other.optim.lr=5e-4",
    "phases.other.schedule.decay_style=constant",
    "trainer.max_steps=null",
)
"""The first two phases change nothing."""
PROMPTS = 7
"""Prompts of a file."""


@pytest.fixture(scope="module")
def in_phases(tmp_path_factory, sorter):
    """Returns a run of three phases, whose processes end with each of them."""

    def train(path):
        for _ in range(3):
            PolicyRun(path, sorter).workers(1, *PHASES)

    return PolicyRun(make_once(tmp_path_factory, "policy_in_phases", train), sorter)


def rows_of(run, steps):
    return [[row[name] for name in SAME_BITS] for row in run.rows if row["step"] in steps]


def test_phases_that_change_nothing_change_no_bit_of_the_results(in_phases, trained):
    steps = range(1, 4)
    alone = trained(1)
    assert rows_of(in_phases, steps) == rows_of(alone, steps)
    (found,) = [one for one in in_phases.events if one.get("phase") == "same" and "greedy" in one]
    (expected,) = [one for one in alone.evaluations() if one["step"] == 3]
    assert {name: found[name] for name in expected} == expected


def test_a_phase_has_its_own_prompts_responses_and_learning_rate(in_phases):
    last = in_phases.rows[3:]
    assert [(row["pairs"], row["generations_per_prompt"]) for row in last] == [(8, 2), (8, 2)]
    assert max(row["response_tokens"] for row in last) <= 2
    assert {row["lr"] for row in last} == {5e-4}
    prompts = {row["step"]: row["prompt"] for row in in_phases.responses}
    assert list(prompts) == [2, 4, 5]
    assert in_phases.rows[-1]["consumed_samples"] == 3 * 8 + 2 * 4


def test_a_phase_that_asks_other_prompts_is_evaluated_before_its_first_step(in_phases):
    found = [
        (one["step"], one["phase"]) for one in in_phases.events if one["event"] == "evaluation"
    ]
    assert found == [(0, "first"), (2, "first"), (3, "same"), (3, "other"), (5, "other")]


def test_a_phase_resumes_after_a_kill_on_ranks_that_generate_as_if_undisturbed(
    run, in_phases, tmp_path
):
    prepare = partial(stand_still_before, [5], str(tmp_path))
    words = ("trainer.devices=2", "rl.rollout_ranks=1", "launch.backoff_s=0")
    supervisor = run.start(*PHASES, *words, "checkpoint.every_steps=1", prepare=prepare)
    wait_until(lambda: len(run.rows) >= 4, supervisor)
    os.kill(children_of(supervisor.pid)[0], signal.SIGKILL)
    wait_until(lambda: any(one["event"] == "fault" for one in run.events), supervisor)
    let_go(5, tmp_path)
    _, errors = supervisor.communicate()
    assert supervisor.returncode == 0, errors
    assert_same_bits(run, in_phases)


def test_a_file_of_prompts_goes_on_where_a_phase_has_left_it(run, tmp_path):
    """No prompt is asked twice before all were asked once, and none gets an earlier number."""
    for name in "ab":
        lines = [f'{{"prompt": "{name}{number}=", "answer": "1"}}\n' for number in range(PROMPTS)]
        (tmp_path / name).write_text("".join(lines))
    words = ["data.task=null", "data.tokenizer=bytes", "data.split=[1,0,0]", "model.vocab_size=256"]
    words += ["model.init_from=null", "rl.kl_weight=0", "trainer.val_samples=0"]
    words += ["rl.prompts_per_step=1", "rl.micro_batch_size=null", "trainer.max_steps=null"]
    for at, (name, length, end) in enumerate((("a", 8, 4), ("b", 8, 9), ("a", 16, 14))):
        words.append(f"phases.p{at}.until=samples:{end}")
        words += [f"phases.p{at}.data.path={tmp_path / name}"]
        words += [f"phases.p{at}.data.sequence_length={length}"]
    resolved = compose_rl(Base(factory="llama3_tiny"), run.overrides(words))
    asked = []
    for phase in resolved.phases:
        reward = Scorer("exact_match", deadline_s=1)
        generator = Generator(
            phase.config, open_prompts(phase.config), reward, reading=phase.reading
        )
        samples = np.arange(phase.plan.first.samples, phase.plan.end.samples)
        asked += generator.training_questions(samples)
    assert [one.number for one in asked] == [*range(14)]
    of_a = [one.example.prompt for one in asked if one.example.prompt.startswith("a")]
    assert len(of_a) == 9
    assert len(set(of_a[:PROMPTS])) == PROMPTS
    assert of_a[:PROMPTS] != of_a[PROMPTS:]


def test_a_new_run_goes_on_from_a_checkpoint_in_a_phase_of_its_own(in_phases):
    def continued(*words, begin="steps:3"):
        return continue_run(in_phases.directory, words, begin=begin, phase="more")

    resolved = continued("until=samples:40", "rl.temperature=0.7", "name=more").resolved
    assert [one.name for one in resolved.phases] == ["first", "same", "more"]
    more = resolved.phases[-1]
    assert (more.plan.first.samples, more.plan.samples) == (24, 16)
    assert more.config.rl.temperature == 0.7
    with pytest.raises(UsageError) as refused:
        continued(begin="1K")
    assert str(refused.value.remedies[0]) == "--from=samples:1K"


def test_a_new_run_runs_no_code_that_only_the_other_run_names(in_phases, tmp_path):
    other = RunDirectory(tmp_path / "other")
    shutil.copytree(in_phases.path, other.path)
    (tmp_path / "theirs.py").write_text("score = len")
    named = other.config.read_text().replace("exact_match", "theirs.py:score")
    other.config.write_text(named)
    with pytest.raises(UsageError, match="which only the command line or Python may do"):
        continue_run(other, ["name=more", "until=samples:40"], begin=None, phase="more")
