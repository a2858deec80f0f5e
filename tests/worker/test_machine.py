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
HANGS = "import time; time.sleep(1000)"
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


def start(tmp_path, **environment) -> subprocess.Popen[str]:
    return subprocess.Popen(
        COMMAND,
        cwd=tmp_path,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def facts_of(process: subprocess.Popen[str]) -> dict:
    return {
        key: fact
        for line in process.communicate(timeout=300)[0].splitlines()
        for key, fact in json.loads(line).items()
    }


def has_ended(process: subprocess.Popen[str]) -> bool:
    """Returns whether its process group ends within 300 s."""
    deadline = time.monotonic() + 300
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        return False
    return True


WELL = "import types; __version__ = '9.9'; version = types.SimpleNamespace(cuda=None)"


def test_versions_backends_and_gpus_are_reported_and_no_process_is_left(
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


def test_an_error_of_gloo_is_reported_and_the_other_tests_still_run(tmp_path):
    facts = facts_of(start(tmp_path, GLOO_SOCKET_IFNAME="nowhere"))
    assert "nowhere" in facts["gloo"]["error"]
    assert {"gpus", "nccl"} <= facts.keys()


@pytest.mark.parametrize(
    "raised", ["OSError('libcudart.so.12')", "ModuleNotFoundError('torch')", "SystemExit('torch')"]
)
def test_an_error_of_torch_is_reported_in_its_words(tmp_path, other_torch, raised):
    other_torch(f"raise {raised}")
    process = start(tmp_path)
    facts = facts_of(process)
    assert (process.returncode, facts.keys()) == (0, {"python", "error"})
    assert facts["error"] == f"{raised.split('(')[0]}: {raised.split(chr(39))[1]}"


def test_results_before_a_crash_are_kept(tmp_path, other_torch):
    other_torch(WELL, distributed=CRASHES)
    process = start(tmp_path)
    assert facts_of(process).keys() == {"python", "torch", "cuda"}
    assert process.returncode == -signal.SIGSEGV


def test_a_hanging_process_does_not_outlive_its_killed_parent(tmp_path, other_torch):
    hanging = (
        f"from torch import *\ndef TCPStore(*_, **__):\n    print('{{}}', flush=True); {HANGS}"
    )
    other_torch(WELL, distributed=hanging)
    process = start(tmp_path)
    while process.stdout.readline() != "{}\n":
        assert process.poll() is None
    process.kill()
    process.wait()
    assert has_ended(process)
