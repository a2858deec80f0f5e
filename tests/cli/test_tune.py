"""`rampcli tune` with real ranks, real limits on memory and real signals."""

import json
import os
import signal
from functools import partial

import pytest

from commands import Command, run_command
from memory_limits import join_group, limit_addresses, memory_group, swap_space
from processes import children_of, wait_until
from rampcli.tune import measure
from standing import stand_still_until
from tiny_runs import TINY, environment

# A prime number of samples per rank: the sizes are this one and 1.
LARGE = ("data.micro_batch_size=4093", "trainer.num_nodes=1", "--steps", "1")
ATTEMPTS_TO_SWAP = 4
ONE_STAGE = {"model.rampup_batch_size": "null", "trainer.val_samples": "0"}


@pytest.fixture
def words(tmp_path):
    """Returns the words of a search in a run directory of its own."""

    def build(*options):
        options = options if "--steps" in options else ("--steps", "6", *options)
        given = [word for word in options if "=" in word]
        settings = TINY | ONE_STAGE | {"run_dir": str(tmp_path / "run")}
        settings |= dict(word.split("=", 1) for word in given)
        return [
            *("tune", "--factory", "llama3_tiny"),
            *(word for word in options if "=" not in word),
            *(f"{key}={value}" for key, value in settings.items()),
        ]

    return build


def tried(done):
    return [int(line.rpartition("=")[2]) for line in done.stdout.splitlines() if "trying" in line]


def test_a_search_times_real_steps_and_is_not_repeated(words, tmp_path):
    search = words("model.global_batch_size=8", "trainer.num_nodes=2")
    done = run_command(search, environment())
    assert done.returncode == 0, done.stderr
    assert tried(done)[:2] == [4, 2]
    assert "largest that fits: 4, the largest that the batch admits" in done.stdout
    found = json.loads((tmp_path / "run" / "tune.json").read_text())
    by_size = {trial["micro_batch_size"]: trial for trial in found["trials"]}
    assert by_size[4]["accumulate_grad_batches"] == 1
    assert by_size[2]["accumulate_grad_batches"] == 2
    for trial in by_size.values():
        (timed,) = trial["medians"]
        assert timed["low_s"] <= timed["s"] <= timed["high_s"]
        assert trial["samples_per_s"] == pytest.approx(8 / timed["s"])
        assert trial["peak_memory_bytes"] > 50 * 2**20
    recommended = min(
        trial["micro_batch_size"]
        for trial in by_size.values()
        if trial["samples_per_s"] >= 0.97 * max(t["samples_per_s"] for t in by_size.values())
    )
    assert f"data.micro_batch_size={recommended}" in done.stdout.splitlines()[-1]
    picture = tmp_path / "found.svg"
    again = run_command([*search, "--json", "--plot", str(picture)], environment())
    assert json.loads(again.stdout) == found
    assert "samples/s" in picture.read_text()
    plan = run_command(["plan", *search[1:3], *search[5:], "--measured", str(tmp_path / "run")])
    assert "rampup.efficiency (measured in " in plan.stdout, plan.stderr
    with_another_model = words("model.global_batch_size=4", "model.hidden_size=16")
    assert tried(run_command(with_another_model, environment()))[0] == 2


def test_a_size_that_needs_too_much_memory_does_not_fit(words):
    command = Command(
        words(
            *LARGE,
            *("model.global_batch_size=8186", "trainer.num_nodes=2", "data.sequence_length=128"),
        ),
        environment(),
        prepare=limit_addresses,
    )
    output, errors = command.communicate()
    assert command.returncode == 0, errors
    assert "4093  does not fit" in output
    assert "rank 0 ran out of memory" in output or "rank 1 ran out of memory" in output
    assert "largest that fits: 1;" in output


def test_a_size_for_which_the_kernel_kills_a_rank_does_not_fit(words):
    with memory_group(3 * 2**27) as group:
        command = Command(
            words(*LARGE, "model.global_batch_size=4093"),
            environment(),
            prepare=partial(join_group, group),
        )
        output, errors = command.communicate()
    assert command.returncode == 0, errors
    assert "4093  does not fit" in output
    assert "rank 0 was killed because the host ran out of memory" in output


def test_a_size_that_swaps_thrashes(words, tmp_path):
    with memory_group(13 * 2**25) as group, swap_space(tmp_path / "swap", 2**31):
        # On a busy disk, the kernel may kill the rank before it has swapped enough.
        for _ in range(ATTEMPTS_TO_SWAP):
            command = Command(
                words(*LARGE, "model.global_batch_size=4093", "--fresh"),
                environment(),
                prepare=partial(join_group, group),
            )
            output, errors = command.communicate()
            assert command.returncode == 0, errors
            if "thrashes: " in output:
                break
        else:
            pytest.fail(output)


def stop_rank_1() -> None:
    """Lets rank 1 of a trial stop itself instead of training."""
    time_step = measure.time_step

    def called(*arguments):
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGSTOP)
        return time_step(*arguments)

    measure.time_step = called


def test_a_trial_that_hangs_is_ended_at_its_time_limit_and_shows_where_a_rank_is(words):
    command = Command(
        words("model.global_batch_size=2", "data.micro_batch_size=1", "--timeout", "8"),
        environment(),
        prepare=stop_rank_1,
    )
    rank = wait_for_rank(command, 1)
    output, errors = command.communicate()
    assert command.returncode == 1
    assert "timed out: no result after 8 s; rank 0 in " in output
    assert "not even data.micro_batch_size=1 fits: timed out" in errors
    wait_until(lambda: not os.path.exists(f"/proc/{rank}"))


def test_a_trial_with_an_error_stops_the_search(words):
    search = words("model.global_batch_size=4", "trainer.num_nodes=2")
    done = run_command(search, environment() | {"GLOO_DEVICE_TRANSPORT": "nowhere"})
    assert done.returncode == 1
    assert tried(done) == [2]
    assert "the trial of data.micro_batch_size=2 failed: " in done.stderr
    assert "micro_2/logs/trial.log" in done.stderr
    assert "does not fit" not in done.stdout


def stand_still_after_the_first_size() -> None:
    """Lets the ranks of sizes below 4 stand still until they are asked to stop."""
    time_step = measure.time_step

    def called(trainer, *arguments):
        if trainer.config.data.micro_batch_size < 4:
            stand_still_until(lambda: trainer.stopper.request.asked)
        return time_step(trainer, *arguments)

    measure.time_step = called


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_search_keeps_its_trials_and_continues(number, words, tmp_path):
    search = words("model.global_batch_size=4", "trainer.num_nodes=1")
    command = Command(search, environment(), prepare=stand_still_after_the_first_size)
    wait_until(lambda: (tmp_path / "run" / "tune.json").exists(), command)
    rank = wait_for_rank(command, 0)
    command.send_signal(number)
    output, _ = command.communicate()
    assert command.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{rank}"))
    if number == signal.SIGINT:
        assert "interrupted; the same command continues and keeps what was measured" in output
    continued = run_command(search, environment())
    assert continued.returncode == 0, continued.stderr
    assert 4 not in tried(continued)
    if number == signal.SIGKILL:
        assert tried(run_command([*search, "--fresh"], environment()))[0] == 4


def wait_for_rank(command, rank):
    """Waits until the command has started a rank, and returns its process."""
    wait_until(lambda: len(children_of(command.pid)) > rank, command)
    return children_of(command.pid)[rank]


def test_estimates_start_nothing_and_cover_every_size_that_the_run_admits(rampcli, tmp_path):
    words = ["--factory", "llama3_8b", f"run_dir={tmp_path / 'run'}"]
    printed = rampcli("tune", *words, "--estimate").stdout
    rows = json.loads(rampcli("tune", *words, "--estimate", "--json").stdout)
    assert [row["micro_batch_size"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert [line.split()[0] for line in printed.splitlines()[1:9]] == [
        str(row["micro_batch_size"]) for row in rows
    ]
    assert "estimated per rank, not measured" in printed
    assert [row["peak_bytes"] for row in rows] == sorted(row["peak_bytes"] for row in rows)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [["--plot", "found.gif"], ["--plot", "nowhere/found.svg"]])
def test_a_picture_that_cannot_be_written_is_refused_before_the_search(options, rampcli, tmp_path):
    refused = rampcli("tune", "--factory", "llama3_tiny", f"run_dir={tmp_path / 'run'}", *options)
    assert refused.exit_code == 2
    assert not (tmp_path / "run").exists()
