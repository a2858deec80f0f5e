import signal
import subprocess
import sys

import pytest

from rampcli.errors import EXIT_TERMINATED, RampcliError
from rampcli.launch.program import run_program


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Returns a function that makes a module of a source, and gives its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(source: str) -> str:
        (tmp_path / "program_of_test.py").write_text(source)
        return "program_of_test"

    return make


def test_its_exit_code_is_the_programs(program):
    assert run_program(program("import sys; sys.exit(int(sys.argv[1]))"), ["5"]) == 5


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")],
)
def test_a_program_that_a_signal_killed_is_reported_so_also_of_one_without_a_name(
    program, number, name
):
    with pytest.raises(RampcliError, match=f"program_of_test was killed by {name}"):
        run_program(
            program("import os, sys; os.kill(os.getpid(), int(sys.argv[1]))"), [str(int(number))]
        )


ENGINE = """
import sys, tempfile, time
from rampcli.weights.program import leave_after

def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("half done", flush=True)
        time.sleep(60)

leave_after(main)
"""
COMMAND = "import sys; from rampcli.launch.program import run_program; sys.exit(run_program(sys.argv[1], sys.argv[2:]))"


def test_sigterm_ends_the_program_too_and_it_removes_what_is_half_done(program, tmp_path):
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-P", "-c", COMMAND, program(ENGINE), str(tmp_path / "out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half done\n"
        process.terminate()
        assert process.communicate(timeout=300) == ("", "")
    assert process.returncode == EXIT_TERMINATED
    assert list((tmp_path / "out").iterdir()) == []
