"""The reward of prompts that the policy has not seen rises."""

from statistics import fmean


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
