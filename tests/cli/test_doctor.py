import json
import os
import re
import subprocess
import sys

import pytest

from rampcli.cli import console

PARTS = [
    *(
        "python",
        "torch",
        "gloo",
        "gpus",
        "nccl",
        "slurm",
        "run directory",
        "locks",
        "disk",
        "clock",
    ),
    *("environment", "open files", "processors", "shared memory"),
]


def test_each_check_has_a_line_and_the_last_line_is_a_summary(succeed, tmp_path):
    lines = succeed("doctor").splitlines()
    assert [
        part
        for line in lines
        for part in PARTS
        if re.match(rf"{part} +(ok|warning|not needed) +\S", line)
    ] == PARTS
    assert lines[-1] == "no problems found" or re.fullmatch(r"\d warnings?", lines[-1])
    assert list(tmp_path.iterdir()) == []


def test_the_needs_of_a_recipe_are_checked_and_a_failure_exits_with_1(rampcli, tmp_path):
    ended = rampcli("doctor", "--factory", "llama3_tiny", "trainer.accelerator=gpu", "name=mine")
    assert (ended.exit_code, ended.stderr) == (1, "")
    assert (
        "\ngpus           failure     this run needs 2 GPUs (2 nodes of 1), and this machine has 0 "
        in ended.stdout
    )
    assert f"runs/mine, in {tmp_path}, is writable" in ended.stdout
    assert re.search(r"^1 failure(, \d warnings?)?$", ended.stdout.splitlines()[-1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("accelerator", "exit_code"), [("cpu", 0), ("gpu", 1)])
def test_json_holds_all_checks_and_nothing_else_is_printed(rampcli, accelerator, exit_code):
    ended = rampcli("doctor", "--json", "-f", "llama3_tiny", f"trainer.accelerator={accelerator}")
    found = json.loads(ended.stdout)
    assert (ended.exit_code, ended.stderr, found["ok"]) == (exit_code, "", exit_code == 0)
    parts = [check["name"] for check in found["checks"]]
    assert parts[parts.index("memory") - 1] == "nccl"
    assert [part for part in parts if part not in ("memory", "start")] == PARTS
    assert ("start" in parts) is (accelerator == "cpu")  # "gpus" says the same
    assert {tuple(check) for check in found["checks"]} == {("name", "status", "finding", "remedy")}
    assert any(check["status"] == "failure" for check in found["checks"]) is not found["ok"]


def test_no_word_is_cut_at_80_columns(rampcli, monkeypatch, tmp_path):
    monkeypatch.setattr(console, "PIPE_WIDTH", 80)
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = rampcli(
        "doctor", "-f", "llama3_tiny", "launch=slurm", "run_dir='[red]/x'"
    ).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    told = " ".join(" ".join(lines).split())
    assert (
        "slurm failure not on PATH: sbatch, srun, scontrol, squeue, scancel, sinfo"
        " try: a login node of the cluster, Slurm's" in told
    )
    assert "run directory ok [red]/x, in" in told


def test_doctor_runs_if_torch_is_broken(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    )
    command = [sys.executable, "-m", "rampcli", "doctor", "-f", "llama3_tiny"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, "")
    assert re.search(
        r"^torch +failure +killed by SIGSEGV *\n +try: pip install ",
        ended.stdout,
        flags=re.MULTILINE,
    )
