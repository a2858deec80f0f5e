import os
import subprocess
import sys
from contextlib import contextmanager

from processes import killed_at_the_end
from recorded_runs import write_run


@contextmanager
def served(folder, *words):
    """Starts `rampcli serve` in a folder and yields the lines that it prints first."""
    command = [sys.executable, "-m", "rampcli", "serve", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE
    )
    with killed_at_the_end(process):
        lines = []
        while not lines or "Ctrl-C" not in lines[-1]:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        yield lines


def test_a_run_is_named_as_for_other_commands(tmp_path):
    write_run(tmp_path / "runs" / "mine")
    with served(tmp_path, "mine") as lines:
        assert lines[0].startswith("serving runs/mine at http")
        assert len(lines) == 2


def test_a_folder_that_does_not_exist_yet_is_said(tmp_path):
    with served(tmp_path, "nosuch") as lines:
        assert lines[1] == (
            "note: nosuch does not exist yet; the page shows its runs once they start\n"
        )
