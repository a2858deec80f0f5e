"""Builds the library of the pretended CUDA device, once for its sources and release of torch."""

import hashlib
import os
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).with_name("device")
FLAGS = ("-O1", "-g0", "-w", "-std=c++20", "-fPIC", "-shared")


def library() -> Path:
    """Returns the path of the library, which is built in half a minute if it is missing.

    Raises:
        SystemExit: torch is another build than the one that the device was written for, or there is
            no compiler.
    """
    has_cuda = (_torch_folder() / "lib" / "libtorch_cuda.so").exists()
    if misfit := misfit_of(version("torch"), has_cuda=has_cuda):
        sys.exit(misfit)
    sources = [path.read_bytes() for path in sorted(SOURCES.iterdir())]
    key = hashlib.sha256(
        repr((sources, version("torch"), FLAGS, sysconfig.get_platform())).encode()
    ).hexdigest()[:16]
    path = Path(sys.prefix, "gpu_rehearsal", f"{key}.so")
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        _compile(path)
    return path


def misfit_of(installed: str, *, has_cuda: bool) -> str | None:
    """Returns why a build of torch cannot have the device, or None if it can.

    Args:
        installed: its version, with or without a local part such as `+cpu`.
        has_cuda: whether it is a build with CUDA, whose own devices the pretended ones would meet.
    """
    wanted = _pinned_torch()
    if installed.partition("+")[0] == wanted and not has_cuda:
        return None
    return (
        f"the pretended CUDA device needs torch {wanted} (constraints.txt) built for CPUs; torch"
        f" {installed} built for {'CUDA' if has_cuda else 'CPUs'} is installed"
    )


def _pinned_torch() -> str:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith("torch=="))


def _torch_folder() -> Path:
    return Path(find_spec("torch").submodule_search_locations[0])


def _compile(path: Path) -> None:
    torch, unfinished = _torch_folder(), path.with_suffix(f".{os.getpid()}")
    command = [
        *(os.environ.get("CXX", "g++"), *FLAGS, str(SOURCES / "device.cpp"), "-o", str(unfinished)),
        *(f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"),
        *(f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-ltorch_cpu", "-lc10"),
    ]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        sys.exit(f"there is no C++ compiler {command[0]}")
    unfinished.rename(path)


if __name__ == "__main__":
    print(library())
