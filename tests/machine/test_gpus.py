import pytest

from rampcli.machine.gpus import gpu_memory_bytes, misread_gpus, visible_gpus


@pytest.mark.parametrize(
    ("variable", "names"),
    [
        ("0, 1,2", ["0", "1", "2"]),
        ("", []),
        ("GPU-ab12", ["GPU-ab12"]),
        ("-1", []),
        ("2,-1,0", ["2"]),
        ("NoDevFiles", []),
        ("0,,1", ["0"]),
        ("a,b", []),
    ],
)
def test_visible_gpus_are_those_in_cuda_visible_devices(monkeypatch, variable, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus() == names


@pytest.mark.parametrize(
    "chosen",
    ["", "-1", "1,-1", "NoDevFiles", "1", "0, 1", "1,0,", "GPU-ab12,GPU-cd34", "MIG-GPU-ab12/1/0"],
)
def test_gpus_that_cuda_uses_as_they_are_named_are_not_misread(chosen):
    assert misread_gpus(chosen, count=2) is None


@pytest.mark.parametrize(
    ("chosen", "reading"),
    [
        ("0,,1", "CUDA uses only GPU 0, because an empty word is no GPU"),
        (",1", "CUDA uses no GPU, because an empty word is no GPU"),
        ("a,b", "CUDA uses no GPU, because a is no GPU"),
        ("0;1", "CUDA uses no GPU, because 0;1 is no GPU"),
        ("0,0", "CUDA uses no GPU, because 0 stands there twice"),
        ("1,2,0", "CUDA uses only GPU 1, because 2 is no GPU"),
        ("9" * 5000, "CUDA uses no GPU, because 99999"),
    ],
)
def test_gpus_that_cuda_leaves_out_are_named_with_the_reason(chosen, reading):
    assert misread_gpus(chosen, count=2).startswith(reading)


def test_numbers_of_gpus_are_not_judged_where_their_count_is_unknown():
    assert misread_gpus("9", count=0) is None


@pytest.fixture
def nvidia_smi(programs, tmp_path):
    """Puts a program of this name on the PATH. It runs a line of shell."""
    return lambda line: programs("", **{"nvidia-smi": f"echo $* > {tmp_path}/asked\n{line}"})


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


def test_the_memory_of_a_gpu_in_mig_mode_is_unknown(monkeypatch, tmp_path, nvidia_smi):
    """A process has one of its instances, whose memory is a part of the GPU's."""
    nvidia_smi("case $* in *mig.mode.current*) echo Disabled; echo Enabled;; *) echo 81559;; esac")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"0,GPU-{tmp_path.name}")
    assert gpu_memory_bytes() is None


def test_without_visible_gpus_nvidia_smi_is_not_asked(monkeypatch, tmp_path, nvidia_smi):
    nvidia_smi("echo 81559")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_memory_bytes() is None
    assert not (tmp_path / "asked").exists()


def test_without_nvidia_smi_the_memory_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-without-a-driver")
    assert gpu_memory_bytes() is None
