import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
import torch

COMMAND = [sys.executable, "-m", "rampcli.worker.machine"]
HANGS = "import time; time.sleep(60)"
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def start(tmp_path, **environment) -> subprocess.Popen[str]:
    return subprocess.Popen(
        COMMAND, cwd=tmp_path, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip


def facts_of(process: subprocess.Popen[str]) -> dict:
    return {
        key: fact
        for line in process.communicate(timeout=60)[0].splitlines()
        for key, fact in json.loads(line).items()
    }


def has_ended(process: subprocess.Popen[str]) -> bool:
    """Whether nothing is left of its group, soon."""
    deadline = time.monotonic() + 20
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        return False
    return True


@pytest.fixture
def other_torch(tmp_path):
    """Puts another torch in front of the installed one; gives the environment in which it is."""

    def write(text: str, *, distributed: str = "") -> dict[str, str]:
        for name, content in (("torch", text), ("torch/distributed", distributed)):
            (tmp_path / "other" / name).mkdir(parents=True)
            (tmp_path / "other" / name / "__init__.py").write_text(content)
        return {"PYTHONPATH": str(tmp_path / "other")}

    return write


WELL = "import types; __version__ = '9.9'; version = types.SimpleNamespace(cuda=None)"


def test_versions_gpus_and_two_processes_that_work_together_are_said_and_no_process_is_left(
    tmp_path,
):
    process = start(tmp_path)
    facts = facts_of(process)
    gpus = torch.cuda.device_count()
    assert process.returncode == 0
    assert tuple(facts["python"]) == sys.version_info[:3]
    assert (facts["torch"], facts["cuda"]) == (torch.__version__, torch.version.cuda)
    assert facts["gloo"] == {"processes": 2, "error": None}
    assert len(facts["gpus"]) == gpus
    assert facts["nccl"] == {"processes": min(2, gpus), "error": None}
    assert has_ended(process)


def test_what_gloo_says_is_told_and_the_rest_is_looked_at_all_the_same(tmp_path):
    facts = facts_of(start(tmp_path, GLOO_SOCKET_IFNAME="nowhere"))
    assert "nowhere" in facts["gloo"]["error"]
    assert {"gpus", "nccl"} <= facts.keys()


@pytest.mark.parametrize(
    "raised", ["OSError('libcudart.so.12')", "ModuleNotFoundError('torch')", "SystemExit('torch')"]
)
def test_what_torch_raises_is_told_in_its_words(tmp_path, other_torch, raised):
    process = start(tmp_path, **other_torch(f"raise {raised}"))
    facts = facts_of(process)
    assert (process.returncode, facts.keys()) == (0, {"python", "error"})
    assert facts["error"] == f"{raised.split('(')[0]}: {raised.split(chr(39))[1]}"


def test_what_was_said_before_a_crash_stays_said(tmp_path, other_torch):
    process = start(tmp_path, **other_torch(WELL, distributed=CRASHES))
    assert facts_of(process).keys() == {"python", "torch", "cuda"}
    assert process.returncode == -signal.SIGSEGV


def test_a_process_that_hangs_does_not_outlive_the_one_that_is_killed(tmp_path, other_torch):
    hanging = (
        f"from torch import *\ndef TCPStore(*_, **__):\n    print('{{}}', flush=True); {HANGS}"
    )
    process = start(tmp_path, **other_torch(WELL, distributed=hanging))
    while process.stdout.readline() != "{}\n":
        assert process.poll() is None
    process.kill()
    process.wait()
    assert has_ended(process)
