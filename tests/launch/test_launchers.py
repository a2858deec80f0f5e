import subprocess
import sys

import pytest

from rampcli.launch.protocol import launchers
from rampcli.runs.directory import RunDirectory


@pytest.mark.parametrize("name", launchers())
def test_a_run_that_never_started_has_no_jobs_under_any_launcher(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # so that no Slurm command is found
    launcher, directory = launchers()[name], RunDirectory(tmp_path / "run")
    assert launcher.jobs(directory) == launcher.cancel(directory) == []
    assert not launcher.is_cancelled(directory)
    assert not launcher.can_ask()
    launcher.refuse_active(directory)
    assert not directory.path.exists()


def test_only_rendering_scripts_imports_jinja2():
    probe = "import sys, rampcli.launch.run, rampcli.launch.status; print('jinja2' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
