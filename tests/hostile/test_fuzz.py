"""Runs `make fuzz`, which takes an hour, for a short time."""

from hostile.fuzz import Fuzzer

CASES = 250
SEED = 0


def test_randomly_damaged_files_and_words_break_no_rule(materials, tmp_path):
    fuzzer = Fuzzer(tmp_path / "world", materials)
    for number in range(CASES):
        fuzzer.run(SEED, number)
    assert dict(fuzzer.findings) == {}
