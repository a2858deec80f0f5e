"""Finds sbatch options that would break a chain of jobs, however getopt_long lets them be spelt."""

import re

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
