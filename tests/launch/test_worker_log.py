import os

from rampcli.launch.worker_log import MOST_BYTES, WorkerLog


def test_the_last_new_line_is_quoted_without_control_characters(tmp_path):
    log = tmp_path / "stage_0.log"
    log.write_text("before\n")
    printed = WorkerLog(log)
    assert (printed.lines(), printed.describe()) == ([], f"log: {log}")
    with log.open("a") as file:
        file.write("x" * 2 * MOST_BYTES + "\nfirst\n  last \x1b[2J\n \n")
    assert printed.lines()[1:] == ["first", "last \x1b[2J"]
    assert printed.describe() == rf"log: {log}, which ends: last \x1b[2J"
    assert printed.describe(quote=False) == f"log: {log}"


def test_a_log_that_is_deleted_or_becomes_a_link_has_no_lines(tmp_path):
    log = tmp_path / "stage_0.log"
    printed = WorkerLog(log)
    assert printed.lines() == []
    (tmp_path / "other").write_text("secret")
    os.symlink("other", log)
    assert printed.describe() == f"log: {log}"
