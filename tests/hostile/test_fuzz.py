"""A short run of what `make fuzz` does for an hour."""

from hostile.fuzz import Fuzzer

CASES = 250
SEED = 0


def test_files_and_words_that_are_damaged_at_random_break_no_law(materials, tmp_path):
    fuzzer = Fuzzer(tmp_path / "world", materials)
    for number in range(CASES):
        fuzzer.run(SEED, number)
    assert dict(fuzzer.findings) == {}
