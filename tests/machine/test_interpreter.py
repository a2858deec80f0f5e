import os
import subprocess
import sys

import pytest

from rampcli.machine.interpreter import python_command, safe_environment


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (":/a", "/a"),
        ("/a::/b:", "/a:/b"),
        (":", None),
        ("", None),
        ("/a", "/a"),
        (".:/a", ".:/a"),
        (None, None),
    ],
)
def test_only_empty_entries_are_removed_from_pythonpath(before, after):
    environment = {"HOME": "/home/me"} | ({} if before is None else {"PYTHONPATH": before})
    expected = {"HOME": "/home/me", "PYTHONSAFEPATH": "1"} | (
        {} if after is None else {"PYTHONPATH": after}
    )
    assert safe_environment(environment) == expected


def test_child_processes_do_not_import_from_the_working_directory(tmp_path):
    for name in ("json", "yaml", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open('{tmp_path}/imported {name}', 'w')")
    environment = safe_environment({**os.environ, "PYTHONPATH": ":"})
    done = subprocess.run(
        python_command("json.tool"),
        env=environment,
        cwd=tmp_path,
        input="{}",
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "{}\n")
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import yaml'])"
    subprocess.run([sys.executable, "-P", "-c", program], env=environment, cwd=tmp_path, check=True)
    assert not list(tmp_path.glob("imported *"))


PROBE = """
from rampcli.machine.interpreter import remove_working_directory_from_path
remove_working_directory_from_path()
import planted
"""


@pytest.mark.parametrize(
    ("path", "imports"),
    [(":", False), (":/nowhere", False), (".", True), (":.", True), (None, False)],
)
def test_the_working_directory_is_on_the_path_only_if_pythonpath_names_it(tmp_path, path, imports):
    (tmp_path / "planted.py").touch()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | (
        {} if path is None else {"PYTHONPATH": path}
    )
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0, "No module named 'planted'" in done.stderr) == (
        imports,
        not imports,
    )
