"""Checks the launch settings."""

import re
from collections.abc import Callable
from typing import Any

from rampcli.config.sbatch_options import FORBIDDEN, forbidden_option, is_option
from rampcli.config.schema import Config
from rampcli.config.settings import EXAMPLES
from rampcli.errors import UsageError

NAMES = ("partition", "account", "qos", "time", "mem")
SBATCH_KEY = "launch.slurm.sbatch_args"
_EXAMPLE = f"{SBATCH_KEY}={EXAMPLES[SBATCH_KEY]}"
_PLAIN = re.compile(r"[\w.,:+@/%*=-]+", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=[^\0]*", re.ASCII | re.DOTALL)


def check_elastic(config: Config) -> None:
    """Checks that elastic training is local, and that it needs no more nodes than there are."""
    launch, num_nodes = config.launch, config.trainer.num_nodes
    if launch.elastic and launch.launcher == "slurm":
        raise UsageError(
            "launch.elastic=true needs launch=local, because the nodes of a Slurm job are fixed",
            keys=("launch.elastic", "launch.launcher"),
            remedy="launch.elastic=false; a job that loses a node is requeued",
        )
    if launch.elastic and launch.min_nodes > num_nodes:
        raise UsageError(
            f"launch.min_nodes={launch.min_nodes} is above trainer.num_nodes={num_nodes}",
            keys=("launch.min_nodes", "trainer.num_nodes"),
            remedy=f"launch.min_nodes={num_nodes} or less",
        )


def check_slurm_names(config: Config) -> None:
    """Checks Slurm names in the script header: they must not contain spaces, quotes or newlines."""
    for name in NAMES:
        text = getattr(config.launch.slurm, name)
        if text is not None and not _PLAIN.fullmatch(text):
            key = f"launch.slurm.{name}"
            raise UsageError(
                f"{key}={text!r} is not a value that sbatch accepts",
                keys=(key,),
                remedy=f"{key}={'4:00:00' if name == 'time' else 'null'}",
            )


def check_slurm_words(config: Config) -> None:
    """Checks sbatch options, environment variables and the path of the interpreter."""
    slurm = config.launch.slurm
    for word in slurm.sbatch_args:
        _check_option(word)
    for word in slurm.environment:
        if not _ASSIGNMENT.fullmatch(word):
            raise UsageError(
                f"launch.slurm.environment has {word!r}, which is not NAME=VALUE",
                keys=("launch.slurm.environment",),
                remedy="""'launch.slurm.environment=["NCCL_DEBUG=INFO"]'""",
            )
    # bash's exec would take a leading dash for an option.
    if slurm.python is not None and slurm.python.startswith("-"):
        raise UsageError(
            f"launch.slurm.python={slurm.python} is not a path",
            keys=("launch.slurm.python",),
            remedy="launch.slurm.python=null",
        )


def _check_option(word: str) -> None:
    if not is_option(word):
        raise UsageError(
            f"{SBATCH_KEY} has {word!r}, which is not an option",
            keys=(SBATCH_KEY,),
            remedy=_EXAMPLE,
        )
    if (name := forbidden_option(word)) is not None:
        meant = "" if word.startswith(f"--{name}") else f" (--{name})"
        raise UsageError(
            f"{SBATCH_KEY} has {word}{meant}, which would break the chain of jobs:"
            f" {FORBIDDEN[name]}",
            keys=(SBATCH_KEY,),
            remedy=_EXAMPLE,
        )


LAUNCH_CHECKS: tuple[Callable[[Config], Any], ...] = (
    check_elastic,
    check_slurm_names,
    check_slurm_words,
)
