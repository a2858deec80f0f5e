"""Reinforcement learning gives the same results on any ranks, and records what it does."""

import math
from statistics import fmean

import pytest

from policy_runs import assert_same_policies
from rampcli.runs.metrics import METRICS, POLICY_METRICS

WAYS = {
    "the weights sharded over two ranks": (2,),
    "the weights replicated on two ranks": (2, "parallel.data_parallel_shard_size=1"),
    "one micro batch on each of four ranks": (4,),
    "layers split over two ranks": (2, "parallel.tensor_parallel_size=2"),
    "all pairs at once": (1, "rl.micro_batch_size=32"),
    "half a group at a time": (2, "rl.micro_batch_size=2", "rl.split_groups=true"),
}
TWO_UPDATES = "rl.updates_per_rollout=2"


@pytest.fixture(scope="module")
def undivided(trained):
    """Returns a run on one rank."""
    return trained(1)


@pytest.mark.parametrize("way", WAYS)
def test_neither_ranks_nor_micro_batches_change_rewards_and_losses(way, run, undivided):
    ranks, *words = WAYS[way]
    run.workers(ranks, *words)
    assert_same_policies(run, undivided)


def test_two_updates_of_each_step_are_the_same_on_two_ranks(trained):
    assert_same_policies(trained(2, TWO_UPDATES), trained(1, TWO_UPDATES))


def test_ratios_of_the_first_update_are_exactly_one(undivided):
    assert set(undivided.column("ratio")) == {1.0}
    assert set(undivided.column("clipped")) == {0.0}


def test_ratios_of_a_second_update_are_not_one(trained, undivided):
    run = trained(1, TWO_UPDATES)
    assert run.column("order_hash") == undivided.column("order_hash")
    assert 1.0 not in run.column("ratio")


def test_responses_are_drawn_from_the_distribution_that_is_trained(undivided):
    """Their log-probabilities are those of the training pass, up to rounding."""
    assert max(undivided.column("old_kl")) < 1e-11


def test_the_divergence_from_the_starting_weights_begins_at_zero(undivided):
    first, *others = undivided.column("reference_kl")
    assert first == 0.0
    assert min(others) > 1e-4


def test_each_row_has_finite_metrics_of_its_pairs(undivided):
    for row in undivided.rows:
        assert (row["pairs"], row["generations_per_prompt"], row["unscored"]) == (32, 4, 0)
        assert row["consumed_tokens"] is None
        assert {one.name for one in POLICY_METRICS} <= row.keys() <= METRICS.keys()
        measured = {key: value for key, value in row.items() if isinstance(value, float)}
        assert all(math.isfinite(value) for value in measured.values())
        # Rewards are 0 or 1.
        mean = row["reward"]
        assert row["solved"] == mean == round(mean * 32) / 32
        assert row["reward_sd"] == pytest.approx(math.sqrt(mean * (1 - mean)))
        assert 1 <= row["response_tokens"] <= 4
        assert row["training_s"] + row["rollout_s"] == pytest.approx(row["step_time_s"], abs=2e-6)


def test_some_responses_are_written_with_their_rewards(undivided):
    assert [row["step"] for row in undivided.responses] == [2] * 4 + [4] * 4
    for row in undivided.responses:
        answer = "".join(sorted(row["prompt"].removesuffix("=")))
        assert row["reward"] == float(row["response"].strip() == answer)
    assert len({row["prompt"] for row in undivided.responses}) == 2


def test_held_out_prompts_are_evaluated_at_the_start_at_intervals_and_at_the_end(undivided):
    evaluations = undivided.evaluations()
    assert [each["step"] for each in evaluations] == [0, 3, 4]
    for each in evaluations:
        assert each["prompts"] == 12
        for kind in ("greedy", "sampled"):
            solved = each[kind]
            assert each[f"{kind}_solved"] == solved == round(solved * 12) / 12
    # A step lets the same weights draw other responses; the likeliest ones stay.
    assert evaluations[0]["greedy"] > evaluations[0]["sampled"]


def test_an_evaluation_adds_rewards_in_double_precision(run, tmp_path):
    (tmp_path / "tenth.py").write_text("def score(prompt, response, example): return 0.1")
    reward = f"rl.reward={tmp_path}/tenth.py:score"
    done = run.pretrain(reward, "rl.kl_weight=0", "trainer.max_steps=1")
    assert done.returncode == 0, done.stderr
    for each in run.evaluations():
        assert each["greedy"] == pytest.approx(0.1, rel=1e-12)


def test_a_prompt_that_comes_twice_in_a_step_gets_other_responses(run, tmp_path):
    """Otherwise, half of what is generated would be repeated."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "012=", "answer": "012"}\n')
    run.workers(
        1,
        "data.task=null",
        "data.tokenizer=bytes",
        f"data.path={prompts}",
        "data.split=[1,0,0]",
        "model.init_from=null",
        "model.vocab_size=256",
        "rl.kl_weight=0",
        "trainer.val_samples=0",
        "trainer.max_steps=1",
        "rl.samples_every_steps=1",
        "rl.prompts_per_step=2",
        "rl.generations_per_prompt=2",
        "rl.micro_batch_size=null",
    )
    responses = [row["response"] for row in run.responses]
    assert len(responses) == 4
    assert responses[:2] != responses[2:]


def test_a_skipped_update_of_several_is_named(run):
    """The first update makes the weights so large that the second one is not finite."""
    run.workers(
        1,
        TWO_UPDATES,
        "optim.lr=1e18",
        "trainer.on_nonfinite=skip",
        "trainer.max_steps=1",
        "trainer.val_samples=0",
    )
    (skip,) = [event for event in run.events if event["event"] == "skip"]
    assert skip["reason"].startswith("update 2 of 2: ")


def test_a_policy_that_sorts_half_of_all_numbers_learns_to_sort_more(run):
    run.workers(
        1,
        "rl.prompts_per_step=16",
        "rl.generations_per_prompt=8",
        "rl.micro_batch_size=null",
        "rl.kl_weight=0",
        "rl.scale_rewards=none",
        "optim.lr=1e-3",
        "optim.warmup_samples=160",
        "trainer.max_steps=100",
        "trainer.val_samples=200",
        "trainer.val_every_steps=null",
    )
    rewards = run.column("reward")
    first, last = run.evaluations()
    assert fmean(rewards[-5:]) > fmean(rewards[:5]) + 0.1
    assert last["sampled"] > first["sampled"] + 0.1
