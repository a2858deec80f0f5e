import pytest

from rampcli import llm
from rampcli.planning.resolve import resolve
from rampcli.planning.stage_memory import GIB, device_memory_bytes, fullest_stage, stage_memory


@pytest.fixture
def one_gpu_of_24_gb(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 24576\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-of-this-test")


@pytest.mark.parametrize(
    ("accelerator", "set_gb", "memory_bytes"),
    [
        ("gpu", None, 24 * GIB),
        ("auto", None, 24 * GIB),
        ("gpu", 80, 80 * GIB),
        ("cpu", None, None),
        ("cpu", 0.5, GIB // 2),
    ],
)
def test_the_memory_of_this_machines_gpus_counts_unless_it_is_set_or_the_cpu_computes(
    one_gpu_of_24_gb,  # noqa: ARG001
    recipe,
    accelerator,
    set_gb,
    memory_bytes,
):
    recipe.trainer.accelerator, recipe.trainer.device_memory_gb = accelerator, set_gb
    assert device_memory_bytes(recipe) == memory_bytes


def test_the_fullest_stage_is_the_first_of_those_that_need_most():
    resolved = resolve(llm.gpt3_5b.pretrain_recipe())
    peaks = [stage_memory(resolved.phases[0], stage).peak_bytes for stage in resolved.plan.stages]
    assert fullest_stage(resolved).stage == peaks.index(max(peaks)) > 0
