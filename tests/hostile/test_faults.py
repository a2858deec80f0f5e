"""Faults of disks, clocks and networks during a run: there is a message, and nothing is lost."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from commands import Command
from hostile.namespaces import ip, leave_mounts, move_to_host, two_hosts
from once import make_once
from processes import children_of, killed_at_the_end, paused, wait_until
from rampcli.runs.manifest import complete_checkpoints
from standing import let_go, stand_still_before
from tiny_runs import Run, assert_same_training, environment

PROCESSES = 2
WORDS = [
    "model.rampup_batch_size=null",
    "trainer.num_nodes=1",
    f"trainer.devices={PROCESSES}",
    "data.micro_batch_size=4",
    "trainer.max_samples=480",
    "trainer.val_every_steps=25",
    "checkpoint.every_steps=5",
    "launch.backoff_s=0",
]
"""A run of 60 steps."""
STEPS = 60
STANDS_BEFORE = (12, 26)
"""Steps before which disturbed ranks stand still. Two checkpoints are complete then."""
ENDLESS = [
    *WORDS,
    "schedule.decay_style=constant",
    "trainer.max_samples=8_000_000",
    "trainer.val_samples=0",
]
"""A run that lasts until it is stopped, and whose steps do not depend on its length."""
MOST_S = 300.0
OTHER_CLOCKS = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
typedef struct timespec Time;
typedef int Wait(pthread_cond_t *, pthread_mutex_t *, const Time *);
int clock_nanosleep(clockid_t clock, int flags, const Time *until, Time *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) ? errno : 0;
}
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const Time *until) {
    static Wait *wait;
    if (!wait) wait = (Wait *)dlsym(dlopen("libc.so.6", RTLD_NOW), "pthread_cond_timedwait");
    Time faked, real, at = *until;
    if (at.tv_sec > 500000000) {  // a time of day, and not a monotonic time
        clock_gettime(CLOCK_REALTIME, &faked);
        syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
        at.tv_sec -= faked.tv_sec - real.tv_sec;
    }
    return wait(condition, mutex, &at);
}
"""
"""Corrects two waits of libfaketime 0.9.10.

It adds its offset to times of the monotonic clock for which to sleep. It also ends waits for
another thread at once, so that gloo waits busily and training takes ten times as long.
"""
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    def train(path: Path) -> None:
        Run(path).workers(PROCESSES, *WORDS, "trainer.num_nodes=1")

    return Run(make_once(tmp_path_factory, "without_faults", train))


def prepare_all(*functions: Callable[[], object]) -> None:
    """Calls functions, one after another."""
    for function in functions:
        function()


@pytest.fixture
def stand_still(tmp_path: Path) -> Callable[[], None]:
    """Prepares a process whose ranks stand still before steps."""
    return partial(stand_still_before, STANDS_BEFORE, str(tmp_path))


def wait_until_before(step: int, run: Run, process: "subprocess.Popen[str]") -> None:
    """Waits until ranks stand still before a step, or are past it."""
    wait_until(lambda: len(run.rows) >= step - 1, process)


def test_a_checkpoint_that_is_damaged_during_training_is_skipped_and_no_sample_is_lost(
    run, undisturbed, stand_still, tmp_path
):
    supervisor = run.start(*WORDS, prepare=stand_still)
    for step, damage in zip(STANDS_BEFORE, (_cut, shutil.rmtree), strict=True):
        wait_until_before(step, run, supervisor)
        damage(complete_checkpoints(run.directory)[-1].path)
        for worker in children_of(supervisor.pid):
            os.kill(worker, signal.SIGKILL)
        let_go(step, tmp_path)
    output, errors = supervisor.communicate()
    assert supervisor.returncode == 0, (output, errors)
    assert [
        row["reason"]
        for row in run.events
        if row["event"] == "fault" and "is damaged" in row["reason"]
    ] != []
    assert_same_training(run, undisturbed)


def _cut(checkpoint: Path) -> None:
    for shard in checkpoint.glob("*.safetensors"):
        os.truncate(shard, shard.stat().st_size // 2)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
def test_a_run_directory_that_becomes_read_only_ends_the_run_and_no_sample_is_lost(
    run, undisturbed, stand_still, tmp_path
):
    prepare = partial(prepare_all, leave_mounts, stand_still)
    supervisor = run.start(*WORDS, prepare=prepare)
    wait_until_before(STANDS_BEFORE[0], run, supervisor)
    aside = tmp_path / "aside"
    aside.mkdir()
    # A mount with a file open for writing cannot become read-only, so it is moved there afterwards.
    over = (
        f"mount --bind '{run.path}' '{aside}' && mount -o remount,bind,ro '{aside}'"
        f" && mount --move '{aside}' '{run.path}'"
    )
    subprocess.run(
        ["nsenter", f"--target={supervisor.pid}", "--mount", "sh", "-c", over], check=True
    )
    let_go(STANDS_BEFORE[0], tmp_path)
    _, errors = supervisor.communicate(timeout=MOST_S)
    assert supervisor.returncode == 1
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    assert errors.startswith(f"error: cannot write {run.path}/")
    assert "its disk is mounted read-only" in errors
    done = run.pretrain(*WORDS)
    assert done.returncode == 0, done.stderr
    assert_same_training(run, undisturbed)


@pytest.fixture
def clock(tmp_path: Path) -> dict[str, str]:
    """Variables that shift a process's time of day by the file `offset`, and not its sleeps."""
    if FAKETIME is None or shutil.which("cc") is None:
        pytest.skip("no libfaketime here, or no C compiler; .ci/run installs them")
    source, library = tmp_path / "clocks.c", tmp_path / "clocks.so"
    source.write_text(OTHER_CLOCKS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return {
        "LD_PRELOAD": f"{library} {FAKETIME}",
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "offset"),
        "FAKETIME_CACHE_DURATION": "0",  # read the file when the next second begins
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def test_a_clock_that_jumps_back_and_forth_changes_nothing(run, clock, tmp_path):
    offset = tmp_path / "offset"
    offset.write_text("+0")
    supervisor = subprocess.Popen(
        run.command(*ENDLESS),
        env=environment() | clock,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    jumps_h = (24, -24, 0, -100_000, 1)
    with killed_at_the_end(supervisor):
        wait_until_before(6, run, supervisor)
        for jump_h in jumps_h:
            with paused([supervisor.pid, *children_of(supervisor.pid)]):
                offset.write_text(f"{jump_h * 3600:+}")
                time.sleep(1.1)
                events = len(run.events)
            wait_until(
                lambda since=events, jump_h=jump_h: jump_h in hours_of(run)[since:], supervisor
            )
        supervisor.send_signal(signal.SIGINT)
        output, errors = supervisor.communicate(timeout=MOST_S)
    assert supervisor.returncode == 130, (output, errors)
    assert {*hours_of(run)} == {*jumps_h}  # it did jump
    assert max(row["step_time_s"] for row in run.rows) < MOST_S
    undisturbed = Run(tmp_path / "undisturbed")
    samples = run.state["consumed_samples"]
    undisturbed.workers(PROCESSES, *ENDLESS, f"trainer.max_samples={samples}")
    assert_same_training(run, undisturbed)


def hours_of(run: Run) -> list[int]:
    """Returns the time of each event, in hours after the first one."""
    times = [row["time"] for row in run.events]
    return [round((at - times[0]) / 3600) for at in times]


def _start_ranks(run: Run, hosts: list[str], stand_still: Callable[[], None]) -> list[Command]:
    """Starts a worker on each host."""
    return [
        Command(
            [str(run.path)],
            environment()
            | {
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "MASTER_ADDR": "10.213.77.1",
                "MASTER_PORT": "29500",
                "GLOO_SOCKET_IFNAME": "cable",
            },
            program="rampcli.worker",
            prepare=partial(prepare_all, partial(move_to_host, host), stand_still),
        )
        for rank, host in enumerate(hosts)
    ]


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("ip") is None, reason="only root can make hosts, with iproute2"
)
def test_a_cut_network_ends_the_ranks_with_a_message_and_no_sample_is_lost(
    run, undisturbed, stand_still, tmp_path
):
    run.path.mkdir()
    run.directory.config.write_text(run.pretrain("--cfg", *WORDS).stdout)
    with two_hosts() as hosts:
        ranks = _start_ranks(run, hosts, stand_still)
        wait_until_before(STANDS_BEFORE[0], run, ranks[0])
        ip("-n", hosts[1], "link", "set", "cable", "down")
        for step in STANDS_BEFORE:
            let_go(step, tmp_path)
        # A rank that sends fails when TCP gives up. One that waits would fail after half an hour.
        wait_until(lambda: any(rank.poll() is not None for rank in ranks), deadline_s=MOST_S)
        ended = [number for number, rank in enumerate(ranks) if rank.poll() is not None]
        for rank in ranks:
            rank.kill()  # as a supervisor does once one of them has failed
        assert 0 not in [rank.wait() for rank in ranks]
        assert len(run.rows) < STEPS
        errors = [ranks[number].communicate()[1] for number in ended]
        assert all(text.splitlines()[-1].startswith("error: ") for text in errors), errors
        ip("-n", hosts[1], "link", "set", "cable", "up")
        assert [rank.wait(timeout=MOST_S) for rank in _start_ranks(run, hosts, stand_still)] == [
            0,
            0,
        ]
    assert_same_training(run, undisturbed)
