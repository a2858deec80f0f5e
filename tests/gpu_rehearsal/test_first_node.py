"""`rampcli doctor --gpu`, the first thing to run on a new node, on two pretended GPUs."""

import json

from commands import Command
from gpu_rehearsal.gpu_runs import gpu_environment
from processes import PATIENCE_S
from rampcli.launch.doctor.gpu_checks import MATRICES, checks_of

UNLIKE = {"driver": "warning", "memory": "failure"}
"""Checks that a pretended GPU does not pass: it has no driver, and no memory of libraries."""


def test_the_checks_of_a_first_node_pass_and_leave_a_report(tmp_path):
    words = ["gpu", "2", str(PATIENCE_S), "--json"]
    command = Command(
        words,
        gpu_environment(2),
        cwd=tmp_path,
        program="gpu_doctor",
    )
    printed, errors = command.communicate()
    assert errors == ""
    found = json.loads(printed)
    checks = {check["name"]: check for check in found["checks"]}
    # A busy machine makes one of the GPUs slower than the other.
    assert checks[MATRICES]["status"] in ("ok", "warning")
    names = [check.name for check in checks_of(2) if check.name != MATRICES]
    expected = dict.fromkeys(names, "ok") | UNLIKE
    assert {name: checks[name]["status"] for name in names} == expected, printed
    assert command.wait() == 1
    assert (tmp_path / found["file"]).is_file()
