"""Checks of Python, torch, what torch can do on this machine, and the memory of its GPUs.

Another process runs torch: it may crash or hang.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from typing import Any

from rampcli.batch.quantities import counted
from rampcli.errors import UsageError, printable
from rampcli.launch.doctor.check import Check, Status
from rampcli.launch.environment import without_outer_launcher
from rampcli.launch.local.launcher import gpus_needed
from rampcli.launch.protocol import launcher_of
from rampcli.machine.gpus import visible_gpus
from rampcli.machine.interpreter import python_command, safe_environment
from rampcli.machine.lifeline import signal_name
from rampcli.planning.run_plan import Resolved
from rampcli.planning.stage_memory import (
    device_memory_bytes,
    fullest_stage,
    shorten_bytes,
    stage_memory,
    usable_bytes,
)
from rampcli.settings.trainer import Accelerator

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 10)
PROBE = "rampcli.worker.machine"
TORCH_TIMEOUT_S = 60.0


def if_here(check: Check, resolved: Resolved | None) -> Check:
    """Returns a check, or one that is not needed if the workers start on other machines."""
    if resolved is None or launcher_of(resolved.config).runs_here:
        return check
    launcher = resolved.config.launch.launcher
    finding = f"launch.launcher={launcher}: the workers run on other machines"
    return Check(check.name, Status.not_needed, finding)


def check_torch(resolved: Resolved | None, timeout_s: float) -> list[Check]:
    """Checks Python, torch, what torch can do under the workers' interpreter, and memory.

    The probe reports its findings in a fixed order. The first one that is missing is a failure,
    and the ones after it are unknown.
    """
    interpreter = sys.executable
    if resolved is not None:
        of_workers = launcher_of(resolved.config).interpreter(resolved.config)
        if of_workers is None:
            finding = "the workers run in a container, which has its own torch"
            return [Check("torch", Status.not_needed, finding), check_memory(resolved, {})]
        interpreter = of_workers
    facts, ending = _run_probe(interpreter, timeout_s=timeout_s)
    checks = []
    for part, (check, remedy) in TORCH_CHECKS.items():
        if part not in facts:
            checks.append(Check(part, Status.failure, ending, remedy))
            break
        found = check(facts, resolved)
        checks.append(if_here(found, resolved) if part in ("gpus", "nccl") else found)
    return checks if resolved is None else [*checks, check_memory(resolved, facts)]


def _run_probe(interpreter: str, *, timeout_s: float) -> tuple[dict[str, Any], str]:
    """Runs `rampcli.worker.machine`; returns the facts that it printed, and how it ended."""
    try:
        done = subprocess.run(
            python_command(PROBE, interpreter=interpreter),
            env=without_outer_launcher(safe_environment()),
            capture_output=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        return {}, f"{interpreter} does not start: {error.strerror}"
    except subprocess.TimeoutExpired as late:
        printed, ending = late.stdout or b"", f"no answer within {timeout_s:g} s"
    else:
        last_line = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        how = (
            f"killed by {signal_name(-done.returncode)}"
            if done.returncode < 0
            else f"exit code {done.returncode}"
        )
        printed, ending = done.stdout, ": ".join([how, *last_line])
    facts: dict[str, Any] = {}
    for line in printed.decode(errors="replace").splitlines():
        with suppress(ValueError, TypeError):  # a truncated line, or output of torch itself
            facts |= json.loads(line)
    return facts, printable(facts.get("error", ending))


def _check_python(facts: dict[str, Any], _: Resolved | None) -> Check:
    version = ".".join(map(str, facts["python"]))
    if tuple(facts["python"]) >= LEAST_PYTHON:
        return Check("python", Status.ok, version)
    return Check("python", Status.failure, f"{version} is too old", PYTHON_REMEDY)


def _check_version(facts: dict[str, Any], _: Resolved | None) -> Check:
    version = str(facts["torch"])
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < LEAST_TORCH:
        return Check("torch", Status.failure, f"{version} is too old", TORCH_REMEDY)
    build = "without CUDA" if facts["cuda"] is None else f"CUDA {facts['cuda']}"
    return Check("torch", Status.ok, f"{version}, {build}")


def _check_gloo(facts: dict[str, Any], resolved: Resolved | None) -> Check:
    if facts["gloo"]["error"] is None:
        finding = f"all-reduce over {facts['gloo']['processes']} processes works"
        return Check("gloo", Status.ok, finding)
    status = Status.warning if _accelerator(resolved) == "gpu" else Status.failure
    return Check("gloo", status, printable(facts["gloo"]["error"]), GLOO_REMEDY)


def _check_gpus(facts: dict[str, Any], resolved: Resolved | None) -> Check:
    name, accelerator, usable = "gpus", _accelerator(resolved), len(facts["gpus"])
    if accelerator == "cpu":
        return Check(name, Status.not_needed, "trainer.accelerator=cpu")
    chosen, visible = os.environ.get("CUDA_VISIBLE_DEVICES"), len(visible_gpus())
    try:
        needed = 0 if resolved is None else gpus_needed(resolved.config, resolved.plan)
    except UsageError as error:
        remedy = UNHIDE_REMEDY if chosen is not None and not visible else error.remedy
        return Check(name, Status.failure, error.message, remedy)
    if usable < visible:
        why, remedy = facts["cuda_error"], DRIVER_REMEDY
        if facts["cuda"] is None:
            why, remedy = "it was built without CUDA", CUDA_REMEDY
        origin = f"in CUDA_VISIBLE_DEVICES={chosen}" if chosen else "on this machine"
        finding = (
            f"torch can use {usable} of the {visible} GPUs {origin}{f': {why}' if why else ''}"
        )
        fails = accelerator == "gpu" and usable < needed
        status = Status.failure if fails else Status.warning
        return Check(name, status, printable(finding), remedy)
    if not usable:
        hidden = f"={chosen} hides them" if chosen else " is empty"
        found = "none" if chosen is None else f"CUDA_VISIBLE_DEVICES{hidden}"
        return Check(name, Status.ok, f"{found}: runs compute on the CPU")
    return _check_usable_gpus(facts, resolved, needed)


def _check_usable_gpus(facts: dict[str, Any], resolved: Resolved | None, needed: int) -> Check:
    """Compares the GPUs that torch can use with those that the run needs."""
    found = ", ".join(
        f"{count} x {name} ({shorten_bytes(memory_bytes)})"
        for (name, memory_bytes), count in Counter(
            (gpu["name"], gpu["memory_bytes"]) for gpu in facts["gpus"]
        ).items()
    )
    if needed:
        return Check("gpus", Status.ok, f"{found}; the largest stage uses {needed}")
    if resolved is None:
        return Check("gpus", Status.ok, found)
    return Check(
        "gpus",
        Status.warning,
        f"{found}; the largest stage has {resolved.plan.largest_world_size} processes,"
        " so trainer.accelerator=auto computes on the CPU",
        "fewer trainer.num_nodes or trainer.devices, or a machine with the GPUs",
    )


def _check_nccl(facts: dict[str, Any], resolved: Resolved | None) -> Check:
    nccl = facts["nccl"]
    if _accelerator(resolved) == "cpu" or not nccl["processes"]:
        return Check("nccl", Status.not_needed, "no GPUs")
    if nccl["error"] is None:
        finding = f"all-reduce over {counted(nccl['processes'], 'GPU')} works"
        return Check("nccl", Status.ok, finding)
    return Check("nccl", Status.failure, printable(nccl["error"]), NCCL_REMEDY)


def check_memory(resolved: Resolved, facts: dict[str, Any]) -> Check:
    """Compares the estimate of the largest stage with the memory of a GPU.

    Args:
        facts: the findings of `rampcli.worker.machine`. GPUs of this machine count more than
            `trainer.device_memory_gb` if the run uses them.
    """
    config, stage = resolved.config, fullest_stage(resolved)
    needed = stage_memory(resolved.of(stage), stage).peak_bytes
    memory_bytes = device_memory_bytes(config)
    if config.trainer.accelerator != "cpu" and launcher_of(config).runs_here:
        memory_bytes = min(
            (gpu["memory_bytes"] for gpu in facts.get("gpus", [])), default=memory_bytes
        )
    if memory_bytes is None:
        finding = f"stage {stage.stage} needs {shorten_bytes(needed)} per process (estimate)"
        return Check("memory", Status.not_needed, finding)
    device = "process" if config.trainer.accelerator == "cpu" else "GPU"
    finding = (
        f"stage {stage.stage} needs {shorten_bytes(needed)} of {shorten_bytes(memory_bytes)}"
        f" per {device} (estimate)"
    )
    if needed <= usable_bytes(config, memory_bytes):
        return Check("memory", Status.ok, finding)
    return Check("memory", Status.warning, finding, MEMORY_REMEDY)


def _accelerator(resolved: Resolved | None) -> Accelerator:
    return "auto" if resolved is None else resolved.config.trainer.accelerator


def _version(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))


PYTHON_REMEDY = (
    f"a virtual environment with Python {_version(LEAST_PYTHON)} or newer, with rampcli in it"
)
TORCH_REMEDY = f'pip install --force-reinstall "torch>={_version(LEAST_TORCH)}"'
GLOO_REMEDY = (
    "add this host's name to /etc/hosts, or set GLOO_SOCKET_IFNAME=lo if all processes run on"
    " this machine"
)
DRIVER_REMEDY = (
    "a driver for torch's version of CUDA, and only GPUs that nvidia-smi -L lists in"
    " CUDA_VISIBLE_DEVICES"
)
CUDA_REMEDY = "a torch build with CUDA (pytorch.org/get-started), or trainer.accelerator=cpu"
UNHIDE_REMEDY = "unset CUDA_VISIBLE_DEVICES"
MEMORY_REMEDY = "settings that fit, which `rampcli plan` names"
NCCL_REMEDY = (
    "NCCL_DEBUG=INFO python -m rampcli.worker.machine shows NCCL's log; set NCCL_P2P_DISABLE=1 if"
    " the GPUs cannot read each other's memory"
)

TORCH_CHECKS = {
    "python": (_check_python, PYTHON_REMEDY),
    "torch": (_check_version, TORCH_REMEDY),
    "gloo": (_check_gloo, GLOO_REMEDY),
    "gpus": (_check_gpus, DRIVER_REMEDY),
    "nccl": (_check_nccl, NCCL_REMEDY),
}
"""The probe's findings in their order: the check of each, and the remedy if it is missing."""
