"""Checks of how workers are to start."""

import re
from collections.abc import Callable
from typing import Any

from rampcli.config.choices import Launcher
from rampcli.config.schema import Config
from rampcli.config.settings import EXAMPLES
from rampcli.errors import UsageError

NAMES = ("partition", "account", "qos", "time", "mem")
OF_THE_CHAIN = ("--array", "--chdir", "--clusters", "--dependency", "--hold", "--job-name", "--parsable", "--wait", "--wrap")
"""Options of sbatch's with which a chain would not be one, or its jobs not be found again."""
_PLAIN = re.compile(r"[\w.,:+@/%*=-]+", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=[^\0]*", re.ASCII | re.DOTALL)


def check_elastic(config: Config) -> None:
    """Nodes come and go where this machine plays them, and the least number of them is there."""
    launch, num_nodes = config.launch, config.trainer.num_nodes
    if launch.elastic and launch.launcher is Launcher.slurm:
        raise UsageError(
            "launch.elastic=true is of launch=local: a job has the nodes that it was given",
            keys=("launch.elastic", "launch.launcher"),
            remedy="launch.elastic=false: a job that loses a node goes on in the queue",
        )
    if launch.elastic and launch.min_nodes > num_nodes:
        raise UsageError(
            f"launch.min_nodes={launch.min_nodes} is above trainer.num_nodes={num_nodes}",
            keys=("launch.min_nodes", "trainer.num_nodes"),
            remedy=f"launch.min_nodes={num_nodes} or less",
        )


def check_slurm_names(config: Config) -> None:
    """What stands in a script's header is what Slurm names things by: no spaces, quotes or newlines."""
    for name in NAMES:
        text = getattr(config.launch.slurm, name)
        if text is not None and not _PLAIN.fullmatch(text):
            key = f"launch.slurm.{name}"
            raise UsageError(
                f"{key}={text!r} is nothing that sbatch takes", keys=(key,), remedy=f"{key}={'4:00:00' if name == 'time' else 'null'}"
            )


def check_slurm_words(config: Config) -> None:
    """Words for sbatch are options on one line, and those for the environment are assignments."""
    slurm = config.launch.slurm
    for option in slurm.sbatch_args:
        if not option.startswith("-") or not option.isprintable():
            raise UsageError(
                f"launch.slurm.sbatch_args has {option!r}, which is no option",
                keys=("launch.slurm.sbatch_args",),
                remedy=f"launch.slurm.sbatch_args={EXAMPLES['launch.slurm.sbatch_args']}",
            )
        if option.partition("=")[0] in OF_THE_CHAIN:
            raise UsageError(
                f"launch.slurm.sbatch_args has {option}, which a chain of jobs sets itself, or cannot do with",
                keys=("launch.slurm.sbatch_args",),
                remedy=f"launch.slurm.sbatch_args={EXAMPLES['launch.slurm.sbatch_args']}",
            )
    for word in slurm.environment:
        if not _ASSIGNMENT.fullmatch(word):
            raise UsageError(
                f"launch.slurm.environment has {word!r}, which is not NAME=VALUE",
                keys=("launch.slurm.environment",),
                remedy="""'launch.slurm.environment=["NCCL_DEBUG=INFO"]'""",
            )


LAUNCH_CHECKS: tuple[Callable[[Config], Any], ...] = (check_elastic, check_slurm_names, check_slurm_words)
