"""Locks and jobs that name foreign processes, and false commands in place of Slurm's."""

import json
import socket
from typing import Any

from hostile.case import Case, case, each
from hostile.cases.run_files import ESCAPES
from hostile.world import DEEP, Plant, World, fifo, not_json, write, write_json
from run_files import chained_job

STATUS, CANCEL = "status run", "cancel run"
HERE = socket.gethostname()
TEXTS: dict[str, str] = {
    name: json.dumps({"host": HERE, "pid": 1} | facts)
    for name, facts in {
        "another process": {"pid": 1},
        "all processes": {"pid": -1},
        "a group of processes": {"pid": -2},
        "its own group": {"pid": 0},
        "a word": {"pid": "init"},
        "2^70": {"pid": 2**70},
        "a fraction": {"pid": 1.5},
        "a list": {"pid": [1]},
        "another host": {"host": "elsewhere"},
        "a host with escape sequences": {"host": ESCAPES},
        "a host that is a mapping": {"host": {}},
        "an unknown field": {"owned": True},
    }.items()
} | {
    "invalid JSON": ESCAPES,
    "deep JSON": "[" * DEEP,
    "nothing": "",
    "sixty megabytes": "x" * (60 * 2**20),
}
LOCKS = {name: write("run/lock", text) for name, text in TEXTS.items()}
JOBS: dict[str, Any] = {
    "jobs that are a number": 5,
    "jobs of numbers": [5],
    "a job of an unknown field": [chained_job(owned=True)],
    "a job without a name": [{key: value for key, value in chained_job().items() if key != "name"}],
    "an id that is a number": [chained_job(job=7)],
    "an id that is an option": [chained_job(job="--user=root")],
    "an id of several words": [chained_job(job="7,8 --me")],
    "an id with escape sequences": [chained_job(job=ESCAPES)],
    "stages that are a string": [chained_job(stages="01")],
    "stages of mappings": [chained_job(stages=[{}])],
    "nodes of 10^30": [chained_job(num_nodes=10**30)],
}


def chain(jobs: Any) -> Plant:
    return write_json("run/slurm/jobs.json", {"jobs": jobs, "submitted": 1.0, "cancelled": False})


def slurm(answer: str) -> Plant:
    """Plants false Slurm commands that give these answers and record their arguments."""

    def plant(world: World) -> None:
        for name in ("squeue", "scancel", "scontrol", "sbatch"):
            path = world.path(f"bin/{name}")
            path.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
            path.chmod(0o755)

    return plant


ANSWERS = {
    "escape sequences": r"7\037RUNNING\037run.stage0\037\033[2J\033]0;x\007\037/\036\n",
    "no records": r"\033[2J nonsense \000\n",
    "bytes that are not UTF-8": r"\377\376\n",
    "a state with escape sequences": r"7\037\033[2J\037run.stage0\037None\037/\036\n",
}


JOBS_FILE = "run/slurm/jobs.json"

CASES: list[Case] = [
    *(
        row
        for command in (STATUS, CANCEL)
        for row in each(
            f"a lock that is held and names {{}}: {command.split()[0]}",
            command,
            (0, 2, 5),
            LOCKS,
            holds_lock=True,
        )
    ),
    *each(
        "a lock that nobody holds and that names {}: cancel",
        CANCEL,
        2,
        LOCKS,
        of=("another process", "all processes", "a word", "2^70", "invalid JSON"),
    ),
    *each("jobs.json, {}: status", STATUS, (0, 5), not_json(JOBS_FILE)),
    *each("jobs.json, {}: cancel", CANCEL, 5, not_json(JOBS_FILE)),
    *(
        case(f"jobs.json, {name}: {verb}", f"{verb} run", (code, 5), chain(jobs), slurm(r""))
        for verb, code in {"cancel": 2, "status": 0}.items()
        for name, jobs in JOBS.items()
    ),
    case("jobs.json is a FIFO: status", STATUS, (0, 2, 5), fifo(JOBS_FILE)),
    case("jobs.json is a FIFO: cancel", CANCEL, (2, 5), fifo(JOBS_FILE)),
    *(
        case(
            f"squeue answers {name}: {command.split()[0]}",
            command,
            (0, 1, 2, 5),
            chain([chained_job()]),
            slurm(answer),
            writes=("run/slurm",) if command == CANCEL else (),
        )
        for name, answer in ANSWERS.items()
        for command in (STATUS, CANCEL)
    ),
]
