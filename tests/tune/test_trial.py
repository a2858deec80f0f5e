"""What the files of a trial's ranks say about it."""

import faulthandler

import pytest

from rampcli.tune.trial import place_in, sign_of_thrashing
from rampcli.tune.trial_files import SIGNS, Result, TrialDirectory

NO_SIGNS = dict.fromkeys(SIGNS, 0)


@pytest.mark.parametrize(
    ("signs", "reason"),
    [
        ({}, None),
        ({"major_faults": 5000}, None),
        ({"major_faults": 5001}, "5,001 pages were read back from the disk"),
        ({"allocator_retries": 1}, "the GPU's memory was full 1 times"),
        ({"swapped_bytes": 2**24}, None),
        ({"swapped_bytes": 2**25}, "32 MiB were swapped out"),
    ],
)
def test_steps_thrash_if_more_than_10_pages_are_read_back_per_watched_step(signs, reason):
    # A diagnosis watches steps under several conditions, more than it times for the result.
    assert sign_of_thrashing(NO_SIGNS | {"watched_steps": 500} | signs) == reason


@pytest.mark.parametrize(
    ("peaks", "largest"), [([2**30, 2**31], 2**31), ([None, 2**30], 2**30), ([None, None], None)]
)
def test_the_peak_of_a_trial_is_the_largest_that_a_rank_knows(peaks, largest, tmp_path):
    trial = TrialDirectory(tmp_path)
    result = Result(step_s={1: [0.1]}, peak_memory_bytes=peaks, signs=NO_SIGNS)
    trial.write_result(result)
    assert trial.read_result().largest_peak_bytes == largest


def test_a_stack_tells_where_a_rank_is_even_if_only_a_part_of_it_was_written(tmp_path):
    stacks = tmp_path / "stack_0.txt"
    with stacks.open("w") as file:
        faulthandler.dump_traceback(file)
    all_threads = stacks.read_text()
    here = all_threads[all_threads.index("Current thread") :]
    first, *frames = here.splitlines(keepends=True)
    assert place_in(stacks).startswith(f'"{__file__}", line ')
    for written in ("", first[:7], first):
        stacks.write_text(written)
        assert place_in(stacks) is None
    stacks.write_text(first + frames[0][:-5])
    assert place_in(stacks) == frames[0][:-5].strip().removeprefix("File ")
    assert place_in(tmp_path / "stack_1.txt") is None
