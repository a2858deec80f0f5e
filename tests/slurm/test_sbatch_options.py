"""Compares the options that rampcli finds in a word with those that sbatch finds."""

import re
import string
from collections.abc import Iterator

import pytest

from rampcli.launch.slurm.settings import FORBIDDEN, forbidden_option, is_option

WITHOUT_VALUE = {"hold", "no-requeue", "parsable", "test-only", "wait"}
VALUES = {
    "array": "1-2",
    "dependency": "afterany:1",
    "open-mode": "append",
    "signal": "B:USR1@9",
    "uid": "0",
}  # the other options accept a number
SHOWN = {"cluster": "clusters"}
NOT_SHOWN = {"wrap"}  # has no effect in a script


@pytest.fixture
def found_by_sbatch(cluster, tmp_path):
    """Returns the long names of the options that sbatch finds in a word of a script.

    Returns None if sbatch refuses the word.
    """
    script = tmp_path / "script"

    def find(word: str) -> set[str] | None:
        script.write_text(f'#!/bin/bash\n#SBATCH "{word}"\ntrue\n')
        output = cluster.run(
            "sbatch", "--verbose", "--partition=nowhere", script, check=False
        ).stderr  # nothing is submitted, because the partition does not exist
        shown = re.findall(r"^sbatch: ([a-z0-9-]+) {2,}: ", output, re.MULTILINE)
        return {SHOWN.get(name, name) for name in shown} if shown else None

    return find


def beginnings() -> Iterator[str]:
    for name in FORBIDDEN:
        for length in range(1, len(name) + 1):
            yield (
                f"--{name[:length]}"
                if name in WITHOUT_VALUE
                else f"--{name[:length]}={VALUES.get(name, 2)}"
            )


def letters() -> Iterator[str]:
    for letter in string.ascii_letters:
        yield from (f"-{letter} 2", f"-{letter}H", f"-Q{letter}Jx", f"-{letter}dafterany:1")


def test_the_options_that_sbatch_reads_in_a_word_are_recognised(cluster, found_by_sbatch):
    others = {
        f"--{name}"
        for name in re.findall(r"--([a-z0-9-]+)", cluster.run("sbatch", "--help").stdout)
    }
    obeyed = set()
    for word in {*beginnings(), *letters(), *others, *(f"{word}=2" for word in others)}:
        found = found_by_sbatch(word)
        if found is None:
            continue
        broken = found & FORBIDDEN.keys()
        assert is_option(word), word
        assert (forbidden_option(word) is not None) == bool(broken) or forbidden_option(
            word
        ) in NOT_SHOWN, (word, found)
        obeyed |= broken
    assert obeyed == FORBIDDEN.keys() - NOT_SHOWN - {
        "tasks-per-node"
    }  # sbatch calls it ntasks-per-node
