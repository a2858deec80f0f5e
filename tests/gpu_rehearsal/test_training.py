"""Training on pretended CUDA devices computes what training on the CPU does."""

import pytest

from gpu_rehearsal.rehearsal import on_devices, pretrain, recorded


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_on_devices_has_the_losses_of_the_cpu(tmp_path, processes):
    words = [f"trainer.num_nodes={processes}"]
    on_cpu = pretrain(tmp_path / "cpu", *words)
    on_gpu = pretrain(
        tmp_path / "gpu", *words, environment=on_devices(processes, record=tmp_path / "record")
    )
    assert len(on_cpu) == 4
    assert on_gpu == on_cpu
    assert {row["kind"] for row in recorded(tmp_path / "record")} >= {"item", "pinned to device"}
