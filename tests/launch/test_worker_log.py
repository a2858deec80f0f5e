import os

import pytest

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


@pytest.mark.parametrize(
    "line",
    [
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7,"
        " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=2500) ran for 2507 milliseconds"
        " before timing out.",
        "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 2500ms for recv operation",
        "torch.distributed.DistStoreError: wait timeout after 2500ms, keys: /devices_0/of_1",
        "DistNetworkError: The client socket has timed out after 2500ms while trying to connect",
    ],
    ids=["NCCL", "gloo", "a store", "no store"],
)
def test_the_seconds_that_a_rank_has_waited_are_read_from_the_log(tmp_path, line):
    printed = WorkerLog(tmp_path / "stage_0.log")
    printed.path.write_text("step 7 took 1500ms\nTimed out waiting 30 s for a lock\n")
    assert printed.timeout_s() is None
    printed.path.write_text(f"step 7 took 1500ms\n{line}\nAborted after 900ms\n")
    assert printed.timeout_s() == 2.5
