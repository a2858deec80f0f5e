"""`rampcli doctor --gpu`, with a process on the CPU in place of each GPU."""

import json
import signal

import pytest

from commands import Command
from processes import PATIENCE_S, wait_until
from rampcli.errors import RampcliError
from rampcli.launch.doctor.check import Status
from rampcli.launch.doctor.gpu_checks import agreement, checks_of, meshes_of
from rampcli.launch.doctor.gpu_runs import GpuTest, Processes, largest_power_of_two
from rampcli.machine.lifeline import StopSignals
from rampcli.worker import join
from standing import stand_still_until

TRAINED = (
    *("CPU losses", "1 GPU", "dp 2", "fsdp 2", "tp 2", "pp 2", "cp 2"),
    *("kill and resume", "speed: 1 GPU", "speed: 2 GPUs"),
)


@pytest.fixture
def start(tmp_path):
    """Starts the checks with small sizes on two processes, in an empty folder."""

    def start(limit_s: float = PATIENCE_S, *options: str, prepare=None) -> Command:
        words = ["cpu", "2", str(limit_s), *options]
        return Command(words, cwd=tmp_path, program="gpu_doctor", prepare=prepare)

    return start


def report_in(folder) -> dict[str, list[str]]:
    """Returns the cells of the report, by check. Nothing else is in the folder."""
    [path] = folder.iterdir()
    lines = [line for line in path.read_text().splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in (line.strip("| ").split(" | ") for line in lines)}


def test_all_checks_run_real_processes_and_one_that_fails_does_not_stop_the_others(start, tmp_path):
    ended = start(PATIENCE_S, "--json")
    printed, errors = ended.communicate()
    assert (ended.wait(), errors) == (1, "")
    found = json.loads(printed)
    checks = {check["name"]: check for check in found["checks"]}
    assert [*checks][-len(checks_of(2)) :] == [check.name for check in checks_of(2)]
    assert {name: checks[name]["status"] for name in TRAINED} == dict.fromkeys(TRAINED, "ok")
    assert "tensor (2 GPUs)" in checks["all-reduce"]["finding"]
    # A process on the CPU holds Python and torch too, unlike a GPU.
    assert (checks["memory"]["status"], found["ok"]) == ("failure", False)
    assert "the estimate is too low" in checks["memory"]["finding"]
    assert found["file"] in [path.name for path in tmp_path.iterdir()]
    report = report_in(tmp_path)
    assert {name: report[name][0] for name in checks} == {
        name: check["status"] for name, check in checks.items()
    }


def test_a_check_that_hangs_is_ended_and_those_that_need_it_are_not_run(start, tmp_path):
    ended = start(0.0)
    printed, errors = ended.communicate()
    assert (ended.wait(), errors) == (1, "")
    report = report_in(tmp_path)
    for name in ("all-reduce", "CPU losses", "kill and resume", "speed: 1 GPU"):
        assert report[name][0] == "failure"
        assert report[name][2].startswith("did not end within 0 s")
    for name in ("1 GPU", "tp 2"):
        assert report[name][::2] == ["not run", "it needs the check 'CPU losses', which is not ok"]
    assert printed.splitlines()[-1].endswith(f" not run; report: {next(tmp_path.iterdir()).name}")


def never_join() -> None:
    """Lets ranks stand still before they join, for ever."""
    join.join_ranks = lambda *_, **__: stand_still_until(lambda: False)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_signal_leaves_the_results_so_far(start, tmp_path, number, code):
    command = start(prepare=never_join)
    wait_until(lambda: command.printed().endswith("all-reduce       "), command)
    command.send_signal(number)
    assert command.wait() == code
    report = report_in(tmp_path)
    assert report["torch"][0] == "ok"
    for check in checks_of(2)[1:]:
        assert report[check.name][::2] == ["not run", "interrupted"]


def test_a_machine_without_gpus_is_refused_before_anything_starts(rampcli, tmp_path):
    ended = rampcli("doctor", "--gpu")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert [*tmp_path.iterdir()] == []


class Planned(Exception):
    """Raised in place of starting processes."""


class PlannedOnly(Processes):
    """Plans runs, and starts nothing."""

    def train(self, _name, settings, **_):
        raise Planned(self.resolved(settings))

    def measure(self, _name, settings, _order, **_):
        raise Planned(self.resolved(settings))


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6, 8, 16])
def test_every_run_of_a_machine_can_be_planned_and_each_axis_has_a_mesh(gpus, tmp_path):
    processes = PlannedOnly(folder=tmp_path, accelerator="cpu", signals=StopSignals())
    test = GpuTest(processes=processes, gpus=gpus, statuses={"all-reduce": Status.ok})
    sizes = set()
    for check in checks_of(gpus)[2 if gpus == 1 else 1 :]:
        with pytest.raises(Planned) as planned:
            check.work(test)
        sizes.add(planned.value.args[0].plan.largest_world_size)
    assert sizes == {1, gpus, largest_power_of_two(gpus)}
    keys = {key for mesh in meshes_of(largest_power_of_two(gpus)).values() for key in mesh}
    assert len(keys) == (0 if gpus == 1 else 4)


def test_steps_agree_up_to_the_rounding_of_bf16():
    rows = [{"step": 1, "loss": 5.0, "grad_norm": 2.0}, {"step": 2, "loss": 4.0, "grad_norm": 1.0}]
    assert agreement(rows, rows) == "equal to the last bit"
    assert "differ by 1.0e-03" in agreement([rows[0], rows[1] | {"loss": 4.004}], rows)
    for wrong in ({"loss": 4.02}, {"grad_norm": 1.05}, {"loss": None}):
        [column] = wrong
        with pytest.raises(RampcliError, match=f"the {column} of step 2"):
            agreement([rows[0], rows[1] | wrong], rows)
    with pytest.raises(RampcliError, match="1 steps were taken"):
        agreement(rows[:1], rows)
