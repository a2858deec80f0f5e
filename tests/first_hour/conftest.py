"""Commands of the installed wheel, in an empty folder outside the repository."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from once import make_once

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A user with rampcli installed from a wheel and an empty folder to work in.

    Attributes:
        folder: current directory of the commands.
        python: interpreter of the environment that the wheel is installed in.
        forking: process that runs commands with this interpreter, see `forking.py`.
    """

    folder: Path
    python: Path
    forking: "subprocess.Popen[str]"

    def start(self, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `rampcli WORDS`, with further environment variables, and waits until it ends.

        The command and its workers are forked from a process that has loaded torch.
        """
        command = [str(word) for word in words]
        request = [command, self._environment(variables), str(self.folder)]
        print(json.dumps(request), file=self.forking.stdin, flush=True)
        answer = self.forking.stdout.readline()
        assert answer, f"{command}: the process that runs commands has ended"
        return subprocess.CompletedProcess(command, *json.loads(answer))

    def start_from_shell(
        self, *words: str | Path, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs `rampcli WORDS` as a shell does, with further environment variables."""
        return self.run(self.python.with_name("rampcli"), *words, **variables)

    def succeed(self, *words: str | Path, **variables: str) -> str:
        """Runs a command that must exit with 0, and returns its stdout."""
        ended = self.start(*words, **variables)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def refused(self, *words: str | Path, **variables: str) -> str:
        """Runs a command that must exit with 2 and print to stderr only, and returns its stderr."""
        ended = self.start(*words, **variables)
        assert (ended.returncode, ended.stdout) == (2, ""), ended.stdout + ended.stderr
        return ended.stderr

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs any program in the folder."""
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(variables),
            capture_output=True,
            text=True,
            check=False,
        )

    def _environment(self, variables: dict[str, str]) -> dict[str, str]:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
        environment.pop("PYTHONPATH", None)
        return environment | variables


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the interpreter of an environment that rampcli's wheel is installed in."""
    return make_once(tmp_path_factory, "installed", _install) / "bin" / "python"


@pytest.fixture(scope="session")
def forking(installed: Path) -> "Iterator[subprocess.Popen[str]]":
    """Starts `forking.py` with the interpreter of `installed`."""
    program = Path(__file__).with_name("forking.py")
    process = subprocess.Popen(
        [installed, "-P", program],
        env={**os.environ, "PYTHONPATH": str(program.parents[1])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.stdin.close()


@pytest.fixture
def newcomer(installed: Path, forking: "subprocess.Popen[str]", tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path, installed, forking)


def _install(folder: Path) -> None:
    """Creates an environment with the wheel, and with the packages that the tests use."""

    def run(*command: str | Path) -> None:
        subprocess.run(command, check=True, capture_output=True)

    run(sys.executable, "-m", "venv", "--without-pip", folder)
    wheels = folder / "wheels"
    build: tuple[str | Path, ...] = ("-m", "build", "--wheel", "--no-isolation", "--outdir", wheels)
    run(sys.executable, *build, REPOSITORY)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", *wheels.iterdir())
    # Python does not read .pth files of a folder that is named in one, so the repository's own
    # rampcli, which is installed as editable, stays hidden.
    packages = sysconfig.get_path("purelib")
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(site, "packages.pth").write_text(f"{packages}\n")
