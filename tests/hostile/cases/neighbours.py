"""Locks and jobs that name foreign processes, and false commands in place of Slurm's."""

import json
import socket
from typing import Any

from hostile.case import Case, case
from hostile.cases.run_files import ESCAPES
from hostile.world import DEEP, Plant, World, fifo, hostile_json, write, write_json
from run_files import chained_job

STATUS, CANCEL = "status run", "cancel run"
HERE = socket.gethostname()
LOCKS: dict[str, str] = {
    "another process": json.dumps({"host": HERE, "pid": 1}),
    "all processes": json.dumps({"host": HERE, "pid": -1}),
    "a group of processes": json.dumps({"host": HERE, "pid": -2}),
    "its own group": json.dumps({"host": HERE, "pid": 0}),
    "a word": json.dumps({"host": HERE, "pid": "init"}),
    "2^70": json.dumps({"host": HERE, "pid": 2**70}),
    "a fraction": json.dumps({"host": HERE, "pid": 1.5}),
    "a list": json.dumps({"host": HERE, "pid": [1]}),
    "another host": json.dumps({"host": "elsewhere", "pid": 1}),
    "a host with escape sequences": json.dumps({"host": ESCAPES, "pid": 1}),
    "a host that is a mapping": json.dumps({"host": {}, "pid": 1}),
    "an unknown field": json.dumps({"host": HERE, "pid": 1, "owned": True}),
    "invalid JSON": ESCAPES,
    "deep JSON": "[" * DEEP,
    "nothing": "",
    "sixty megabytes": "x" * (60 * 2**20),
}
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


def locked_by(text: str) -> Plant:
    return write("run/lock", text)


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


def written(command: str) -> tuple[str, ...]:
    """Files that a command may write in a run that has jobs."""
    return ("run/slurm",) if command == CANCEL else ()


CASES: list[Case] = [
    *(
        case(
            f"a lock that is held and names {name}: {command.split()[0]}",
            command,
            (0, 2, 5),
            locked_by(text),
            holds_lock=True,
        )
        for name, text in LOCKS.items()
        for command in (STATUS, CANCEL)
    ),
    *(
        case(
            f"a lock that nobody holds and that names {name}: cancel",
            CANCEL,
            2,
            locked_by(LOCKS[name]),
        )
        for name in (
            "another process",
            "all processes",
            "a word",
            "2^70",
            "invalid JSON",
        )
    ),
    *(
        case(f"jobs.json, {name}: status", STATUS, (0, 5), write("run/slurm/jobs.json", text))
        for name, text in hostile_json().items()
    ),
    *(
        case(f"jobs.json, {name}: cancel", CANCEL, 5, write("run/slurm/jobs.json", text))
        for name, text in hostile_json().items()
    ),
    *(
        case(f"jobs.json, {name}: cancel", CANCEL, (2, 5), chain(jobs), slurm(r""))
        for name, jobs in JOBS.items()
    ),
    *(
        case(f"jobs.json, {name}: status", STATUS, (0, 5), chain(jobs), slurm(r""))
        for name, jobs in JOBS.items()
    ),
    case("jobs.json is a FIFO: status", STATUS, (0, 2, 5), fifo("run/slurm/jobs.json")),
    case("jobs.json is a FIFO: cancel", CANCEL, (2, 5), fifo("run/slurm/jobs.json")),
    *(
        case(
            f"squeue answers {name}: {command.split()[0]}",
            command,
            (0, 1, 2, 5),
            chain([chained_job()]),
            slurm(answer),
            writes=written(command),
        )
        for name, answer in ANSWERS.items()
        for command in (STATUS, CANCEL)
    ),
]
