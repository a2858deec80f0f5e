"""The settings of the section `launch.slurm`, and their checks."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rampcli.errors import UsageError, set_to
from rampcli.settings.attributes import Section
from rampcli.settings.facts import MACHINES, NOTHING, whole_run
from rampcli.settings.fields import Keyed, keyed, setting, settings_class

FORBIDDEN = {
    "array": "a job of the chain cannot be an array",
    "chdir": "rampcli finds a job by its folder",
    "clusters": "rampcli finds a job on the default cluster",
    "dependency": "each job depends on the one before it",
    "hold": "only the first job would be released",
    "job-name": "rampcli finds a job by its name",
    "nodes": "trainer.num_nodes sets the number of nodes",
    "no-requeue": "a job is requeued at its time limit",
    "ntasks": "trainer.devices sets the processes per node",
    "ntasks-per-node": "trainer.devices sets the processes per node",
    "open-mode": "a requeued job appends to its log",
    "parsable": "rampcli sets it already",
    "signal": "launch.grace_s sets when a job is asked to save",
    "tasks-per-node": "trainer.devices sets the processes per node",
    "test-only": "sbatch would submit nothing",
    "uid": "rampcli finds a job by its user",
    "wait": "sbatch would wait for a held job",
    "wrap": "each job runs the chain's own script",
}
"""sbatch options that would break the job chain or make its jobs untraceable, and why."""
_SHORT = {
    "a": "array",
    "d": "dependency",
    "D": "chdir",
    "H": "hold",
    "J": "job-name",
    "M": "clusters",
    "n": "ntasks",
    "N": "nodes",
    "W": "wait",
}
_WITHOUT_VALUE = "hHOQsvVW"
_OPTION = re.compile(r"--[^\s=-][^\s=]*(=.*)?|-[^\s-].*")
NAMED_SETTINGS = ("partition", "account", "qos", "time", "mem")
_EXAMPLE = set_to("launch.slurm.sbatch_args", ["--exclusive"])
_PLAIN = re.compile(r"[\w.,:+@/%*=-]+", re.ASCII)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=[^\0]*", re.ASCII | re.DOTALL)


def is_option(word: str) -> bool:
    """Returns whether sbatch could read a word as one option or several short ones.

    A long option has its value after `=`.
    """
    return word.isprintable() and _OPTION.fullmatch(word) is not None


def forbidden_option(word: str) -> str | None:
    """Returns the long name of the first forbidden option in a word, or None.

    getopt_long accepts a long option cut short, if only one option begins that way. The other
    options depend on Slurm's version, so every beginning of a forbidden name counts. sbatch refuses
    ambiguous ones itself, and no forbidden name begins with the whole name of an allowed option.
    """
    if word.startswith("--"):
        typed = word[2:].partition("=")[0]
        if typed in FORBIDDEN:
            return typed
        return next((name for name in FORBIDDEN if name.startswith(typed)), None)
    for letter in word[1:]:
        if letter in _SHORT:
            return _SHORT[letter]
        if letter not in _WITHOUT_VALUE:  # the rest is its value
            return None
    return None


if TYPE_CHECKING:  # the schema imports this module
    from rampcli.settings.config import Config


@keyed("launch.slurm.")
@settings_class(kw_only=True)
class SlurmConfig(Section):
    """Options of the Slurm jobs and the environment of their workers. Scripts quote all values."""

    partition: Keyed[str | None] = setting(
        None, "Partition. `null`: the cluster's default.", whole_run(MACHINES)
    )
    account: Keyed[str | None] = setting(
        None, "Account that is charged. `null`: the cluster's default.", whole_run(NOTHING)
    )
    qos: Keyed[str | None] = setting(
        None, "Quality of service. `null`: the cluster's default.", whole_run(NOTHING)
    )
    time: Keyed[str | None] = setting(
        None,
        "Time limit of a job, in sbatch's format. A job that reaches it saves and is requeued."
        " `null`: the cluster's default.",
        whole_run(NOTHING),
        example="4:00:00",
    )
    mem: Keyed[str | None] = setting(
        None,
        "Memory per node, in sbatch's format. `null`: the cluster's default.",
        whole_run(MACHINES),
    )
    gpus_per_node: Keyed[int | None] = setting(
        None,
        "GPUs per node. `null`: one per process, or none if `trainer.accelerator` is `cpu`.",
        whole_run(MACHINES),
        unit="GPUs",
        at_least=0,
    )
    cpus_per_task: Keyed[int | None] = setting(
        None,
        "Processors per process. `null`: the cluster's default.",
        whole_run(MACHINES),
        unit="processors",
        at_least=1,
    )
    sbatch_args: Keyed[list[str]] = setting(
        [],
        """Further sbatch options, `'[--exclusive,"--constraint=h100"]'`.""",
        whole_run(MACHINES),
        example=["--exclusive"],
    )
    srun_args: Keyed[list[str]] = setting(
        [], "Further srun options, for example those of a container plugin.", whole_run(MACHINES)
    )
    modules: Keyed[list[str]] = setting(
        [], "Modules to load with `module load`.", whole_run(MACHINES)
    )
    environment: Keyed[list[str]] = setting(
        [], """Environment variables of a job, `'["NAME=VALUE"]'`.""", whole_run(MACHINES)
    )
    container: Keyed[list[str]] = setting(
        [],
        "Words in front of the workers' command, `[apptainer,exec,--nv,image.sif]`.",
        whole_run(MACHINES),
    )
    python: Keyed[str | None] = setting(
        None,
        "Python interpreter of the workers. `null`: the one that submits the jobs.",
        whole_run(MACHINES),
    )
    template: Keyed[str | None] = setting(
        None, "Jinja template for the jobs' scripts. `null`: the bundled one.", whole_run(MACHINES)
    )


def check_names(config: "Config") -> Iterator[UsageError]:
    """Checks Slurm names in the script header: they must not contain spaces, quotes or newlines."""
    for name in NAMED_SETTINGS:
        text = getattr(config.launch.slurm, name)
        if text is not None and not _PLAIN.fullmatch(text):
            key = f"launch.slurm.{name}"
            yield UsageError(
                f"{key}={text!r} is not a value that sbatch accepts",
                keys=(key,),
                remedy=set_to(key, "4:00:00" if name == "time" else None),
            )


def check_words(config: "Config") -> Iterator[UsageError]:
    """Checks sbatch options, environment variables and the path of the interpreter."""
    slurm = config.launch.slurm
    for word in slurm.sbatch_args:
        yield from _check_option(word)
    for word in slurm.environment:
        if not _ASSIGNMENT.fullmatch(word):
            yield UsageError(
                f"launch.slurm.environment has {word!r}, which is not NAME=VALUE",
                keys=(SlurmConfig.environment,),
                remedy=set_to(SlurmConfig.environment, '["NCCL_DEBUG=INFO"]'),
            )
    # bash's exec would take a leading dash for an option.
    if slurm.python is not None and slurm.python.startswith("-"):
        yield UsageError(
            f"launch.slurm.python={slurm.python} is not a path",
            keys=(SlurmConfig.python,),
            remedy=set_to(SlurmConfig.python, None),
        )


def _check_option(word: str) -> Iterator[UsageError]:
    if not is_option(word):
        yield UsageError(
            f"{SlurmConfig.sbatch_args} has {word!r}, which is not an option",
            keys=(SlurmConfig.sbatch_args,),
            remedy=_EXAMPLE,
        )
    elif (name := forbidden_option(word)) is not None:
        meant = "" if word.startswith(f"--{name}") else f" (--{name})"
        yield UsageError(
            f"{SlurmConfig.sbatch_args} has {word}{meant}, which would break the chain of jobs:"
            f" {FORBIDDEN[name]}",
            keys=(SlurmConfig.sbatch_args,),
            remedy=_EXAMPLE,
        )
