import numpy as np
import pytest

from rampcli.batch.scrambling import GOLDEN_RATIO, hash_of, mix, uniforms_of


def test_the_mix_is_that_of_splitmix64():
    # The first outputs of the published generator that starts at 0.
    states = np.arange(1, 4, dtype=np.uint64) * GOLDEN_RATIO
    assert [f"{number:016x}" for number in mix(states)] == [
        "e220a8397b1dcdaf",
        "6e789e6aa1b965f4",
        "06c45d188009454f",
    ]


@pytest.mark.filterwarnings("error")
def test_hashes_of_arrays_are_those_of_their_elements():
    rows, columns = np.array([0, 7, 2**64 - 1], np.uint64), np.arange(4)
    together = hash_of(3, rows[:, None], columns)
    alone = [[int(hash_of(3, int(row), int(column))) for column in columns] for row in rows]
    assert together.tolist() == alone


def test_hashes_depend_on_each_integer_and_on_their_order():
    numbers = np.arange(20)
    hashes = hash_of(numbers[:, None, None], numbers[:, None], numbers)
    assert len(np.unique(hashes)) == 20**3
    assert hash_of(1) != hash_of(1, 0) != hash_of(0, 1)


def test_uniform_numbers_fill_the_unit_interval_evenly_and_independently():
    numbers = uniforms_of(5, np.arange(200)[:, None], np.arange(201))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for first, second in (
        (numbers[:, :-1], numbers[:, 1:]),
        (numbers[:-1], numbers[1:]),
    ):
        counts, _, _ = np.histogram2d(first.ravel(), second.ravel(), bins=10, range=[[0, 1]] * 2)
        expected = first.size / 100
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert abs(chi_square - 99) < 4 * np.sqrt(2 * 99)
