import pytest

from rampcli.gpus import gpu_memory_bytes, visible_gpus


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("0, 1,2", ["0", "1", "2"]),
        ("", []),
        ("GPU-ab12", ["GPU-ab12"]),
        ("-1", []),
        ("2,-1,0", ["2"]),
    ],
)
def test_visible_gpus_are_those_in_cuda_visible_devices(monkeypatch, variable, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus() == names


@pytest.fixture
def nvidia_smi(monkeypatch, tmp_path):
    """Puts a program of this name on the PATH. It runs a line of shell."""

    def install(line: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho $* > {tmp_path}/asked\n{line}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return install


@pytest.mark.parametrize(
    ("line", "memory_bytes"),
    [
        ("echo 81559", 81559 * 2**20),
        ("echo 81559; echo 40960", 40960 * 2**20),
        ("echo '[N/A]'", None),
        ("exit 0", None),
        ("echo 81559; exit 9", None),
    ],
)
def test_the_memory_is_that_of_the_smallest_gpu_that_nvidia_smi_names(
    monkeypatch, tmp_path, nvidia_smi, line, memory_bytes
):
    nvidia_smi(line)
    gpus = f"2,GPU-{tmp_path.name}"  # an answer is kept for the same GPUs
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    assert gpu_memory_bytes() == memory_bytes
    assert (tmp_path / "asked").read_text().startswith(f"--id={gpus} --query-gpu=memory.total")


def test_without_visible_gpus_nvidia_smi_is_not_asked(monkeypatch, tmp_path, nvidia_smi):
    nvidia_smi("echo 81559")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_memory_bytes() is None
    assert not (tmp_path / "asked").exists()


def test_without_nvidia_smi_the_memory_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-without-a-driver")
    assert gpu_memory_bytes() is None
