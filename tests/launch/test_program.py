import signal
import subprocess
import sys

import pytest

from processes import killed_at_the_end
from rampcli.errors import EXIT_TERMINATED, RampcliError
from rampcli.launch.program import run_program


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes a module with some source, and returns its name."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(source: str) -> str:
        (tmp_path / "program_of_test.py").write_text(source)
        return "program_of_test"

    return make


def test_the_exit_code_is_that_of_the_program(program):
    assert run_program(program("import sys; sys.exit(int(sys.argv[1]))"), ["5"]) == 5


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGKILL, "SIGKILL"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")],
)
def test_a_program_that_was_killed_is_reported_with_the_signal(program, number, name):
    with pytest.raises(RampcliError, match=f"program_of_test was killed by {name}"):
        run_program(
            program("import os, sys; os.kill(os.getpid(), int(sys.argv[1]))"), [str(int(number))]
        )


ENGINE = """
import signal, sys, tempfile
from rampcli.weights.program import run_and_exit

def main():
    with tempfile.TemporaryDirectory(dir=sys.argv[1]):
        print("unfinished", flush=True)
        signal.pause()

run_and_exit(main)
"""
COMMAND = """
import sys
from rampcli.launch.program import run_program
sys.exit(run_program(sys.argv[1], sys.argv[2:]))
"""


def test_sigterm_also_ends_the_program_which_removes_unfinished_files(program, tmp_path):
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-P", "-c", COMMAND, program(ENGINE), str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with killed_at_the_end(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "unfinished\n"
        process.terminate()
        assert process.communicate(timeout=300) == ("", "")
    assert process.returncode == EXIT_TERMINATED
    assert list((tmp_path / "out").iterdir()) == []
