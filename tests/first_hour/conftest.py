"""Commands of the installed wheel, in an empty folder outside the repository."""

import os
import subprocess
import sys
import sysconfig
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
    """

    folder: Path
    python: Path

    def start(self, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs `rampcli WORDS`, with further environment variables, and waits until it ends."""
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
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "100"}
        environment.pop("PYTHONPATH", None)
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the interpreter of an environment that rampcli's wheel is installed in."""
    return make_once(tmp_path_factory, "installed", _install) / "bin" / "python"


@pytest.fixture
def newcomer(installed: Path, tmp_path: Path) -> Newcomer:
    return Newcomer(tmp_path, installed)


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
