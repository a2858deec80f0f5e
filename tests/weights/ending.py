"""A program that ends in a given way."""

import sys
from pathlib import Path

from ranks import redirect_output, start_process

MAIN = """
import torch
from rampcli.weights.program import run_and_exit
from rampcli.errors import DamagedFileError

def main():
    print("begun")
    {what}

run_and_exit(main)
"""


def run_main(what: str, folder: Path) -> tuple[int | None, str, str]:
    """Returns the exit code of a program with a given statement, and what it printed."""
    output, errors = folder / "stdout", folder / "stderr"
    program = start_process(_run_main, what, output, errors)
    program.join()
    return program.exitcode, output.read_text(), errors.read_text()


def _run_main(what: str, output: Path, errors: Path) -> None:
    redirect_output(output, errors)
    sys.argv = ["program"]  # else those of pytest, which would be read as the program's options
    exec(MAIN.format(what=what), {})
