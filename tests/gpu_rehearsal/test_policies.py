"""Reinforcement learning on GPUs, with ranks that only generate."""

from gpu_rehearsal.gpu_runs import devices_of, on_both
from policy_runs import PolicyRun, assert_same_policies, weights_to_start_from

WORDS = ("rl.rollout_ranks=1", "trainer.max_steps=2", "trainer.val_samples=4")


def test_policies_learn_on_gpus_what_they_learn_on_the_cpu(tmp_path, tmp_path_factory):
    """Two ranks train and one generates at the same time."""
    start = weights_to_start_from(tmp_path_factory)
    gpu, cpu = PolicyRun(tmp_path / "gpu", start), PolicyRun(tmp_path / "cpu", start)
    on_both(gpu, cpu, 3, *WORDS)
    assert devices_of(gpu) == {"cuda"}
    assert devices_of(cpu) == {"cpu"}
    assert_same_policies(gpu, cpu)
