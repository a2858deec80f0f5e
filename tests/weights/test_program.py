import pytest

from weights.ending import run_main


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("pass", 0, ""),
        ("raise DamagedFileError('it is cut')", 5, "error: it is cut\n"),
        ("raise DamagedFileError('it is cut') from MemoryError()", 5, "error: it is cut\n"),
        ("open('nowhere')", 1, "error: No such file or directory: nowhere\n"),
        ("raise KeyboardInterrupt", 130, ""),
        ("raise MemoryError", 1, "error: not enough memory: MemoryError\n"),
        ("torch.empty(2**60)", 1, "error: not enough memory: "),
        ("torch.empty(2**62, 2**62)", 1, "error: not enough memory: "),
        ("bytearray(2**62)", 1, "error: not enough memory: "),
    ],
)
def test_an_error_that_a_user_can_cause_ends_a_program_with_one_message(
    what, code, message, tmp_path
):
    returned, output, errors = run_main(what, tmp_path)
    assert (returned, output) == (code, "begun\n")
    assert errors.startswith(message)
    assert "Traceback" not in errors


def test_a_bug_ends_a_program_with_a_traceback(tmp_path):
    code, _, errors = run_main("1 / 0", tmp_path)
    assert code == 1
    assert "ZeroDivisionError" in errors
