"""Training on pretended CUDA devices computes what training on the CPU does."""

import pytest

from gpu_rehearsal.rehearsal import on_devices, pretrain, recorded


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_on_devices_has_the_losses_of_the_cpu(tmp_path, processes, late):
    words = [f"trainer.num_nodes={processes}"]
    devices = on_devices(processes, late=late, record=tmp_path / "record")
    on_gpu = pretrain(tmp_path / "gpu", *words, environment=devices)
    assert len(on_gpu) == 4
    assert on_gpu == pretrain(tmp_path / "cpu", *words)
    assert {row["kind"] for row in recorded(tmp_path / "record")} >= {"item", "pinned to device"}
