import subprocess
import sys

import pytest

MAIN = """
import torch
from rampcli.weights.program import run_and_exit
from rampcli.errors import DamagedFileError

def main():
    print("begun")
    {what}

run_and_exit(main)
"""


@pytest.mark.parametrize(
    ("what", "code", "said"),
    [
        ("pass", 0, ""),
        ("raise DamagedFileError('it is cut')", 5, "error: it is cut\n"),
        ("open('nowhere')", 1, "error: [Errno 2] No such file or directory: 'nowhere'\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise MemoryError", 1, "error: not enough memory: MemoryError\n"),
        ("torch.empty(2**60)", 1, "error: not enough memory: "),
        ("torch.empty(2**62, 2**62)", 1, "error: not enough memory: "),
        ("bytearray(2**62)", 1, "error: not enough memory: "),
    ],
)
def test_what_a_user_can_cause_ends_a_program_with_one_message(what, code, said):
    done = subprocess.run(
        [sys.executable, "-P", "-c", MAIN.format(what=what)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "begun\n")
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_a_mistake_of_the_program_shows_where_it_is():
    done = subprocess.run(
        [sys.executable, "-P", "-c", MAIN.format(what="1 / 0")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
