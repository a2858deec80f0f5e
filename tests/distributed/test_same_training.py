import json
import os
import signal
import time
from pathlib import Path


def test_two_processes_train_as_one_does(run, undisturbed, assert_same_training):
    run.workers(2, "rampup.at_boundary=continue", "rampup.node_policy=fixed", "data.micro_batch_size=1")
    assert {row["world_size"] for row in run.rows} == {2}
    assert_same_training(run, undisturbed)


def test_three_processes_that_divide_no_parameter_evenly_train_as_one_does(run, assert_same_training):
    words = ["model.rampup_batch_size=[3,3,30]", "model.global_batch_size=9", "data.micro_batch_size=1", "rampup.at_boundary=continue"]
    alone = type(run)(run.path.with_name("alone"))
    alone.workers(1, "rampup.node_policy=fixed", *words)
    run.workers(3, "rampup.node_policy=fixed", *words)
    assert_same_training(run, alone)


def test_going_on_by_hand_with_twice_the_processes_at_every_stage_changes_nothing(run, assert_same_training):
    words = ["rampup.node_policy=fixed", "data.micro_batch_size=1", "model.rampup_batch_size=[4,4,48]", "model.global_batch_size=12"]
    alone = type(run)(run.path.with_name("alone"))
    alone.workers(1, "rampup.at_boundary=continue", *words)
    for stage, processes in enumerate((1, 2, 4)):
        done = run.pretrain("--one-stage", *words, f"trainer.num_nodes={processes}")
        assert done.returncode == 0, done.stderr
        assert run.rows[-1]["stage"] == stage
        if stage < 2:
            assert run.state["status"] == "stage_boundary"
            assert run.state["next"] | {"command": None} == {
                "stage": stage + 1, "global_batch_size": 8 + 4 * stage, "num_nodes": processes, "command": None
            }  # fmt: skip
            assert run.state["next"]["command"] in done.stdout
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 2, 2: 4}
    assert_same_training(run, alone)


def test_stages_that_are_behind_do_not_have_to_fit_the_processes_that_go_on(run, undisturbed, assert_same_training):
    words = ["rampup.node_policy=fixed", "data.micro_batch_size=1"]
    grown = [*words, "trainer.num_nodes=4"]
    refused = run.pretrain(*grown)
    assert refused.returncode == 2
    assert "stages 0 (batch size 2), 2 (batch size 6) of the ramp do not divide" in refused.stderr
    for _ in range(3):
        assert run.pretrain("--one-stage", *words, "trainer.num_nodes=1").returncode == 0
    planned = run.pretrain("--dry-run", *grown)
    assert planned.returncode == 0, planned.stderr
    assert "note: stages 0 to 2 are behind and do not fit today's nodes" in planned.stdout
    done = run.pretrain(*grown)
    assert done.returncode == 0, done.stderr
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 1, 2: 1, 3: 4}
    assert [stage["num_nodes"] for stage in json.loads((run.path / "plan.json").read_text())["stages"]] == [None, None, None, 4]
    assert_same_training(run, undisturbed)


def test_a_step_schedule_that_shrinks_trains_the_same_on_any_number_of_processes(run, assert_same_training):
    words = [
        "model.rampup_batch_size=null",
        "model.global_batch_size=null",
        "model.step_batch_size_schedule='samples: 0:2 20:6 50:4'",
        "data.micro_batch_size=1",
        "schedule.decay_style=wsd",
        "schedule.batch_coupling=sqrt",
    ]
    alone = type(run)(run.path.with_name("alone"))
    alone.workers(1, "rampup.at_boundary=continue", "rampup.node_policy=fixed", *words)
    done = run.pretrain("rampup.node_policy=best", "trainer.num_nodes=3", *words)
    assert done.returncode == 0, done.stderr
    assert {row["stage"]: (row["global_batch_size"], row["world_size"]) for row in run.rows} == {0: (2, 2), 1: (6, 3), 2: (4, 2)}
    assert_same_training(run, alone)


def test_a_ramp_that_continues_grows_in_place_and_restarts_only_for_more_processes(run, undisturbed, assert_same_training):
    done = run.pretrain("rampup.at_boundary=continue", "trainer.num_nodes=2")
    assert done.returncode == 0, done.stderr
    worlds = [event["world_size"] for event in run.events if event["event"] == "start"]
    stages = [(event["stage"], event["world_size"]) for event in run.events if event["event"] == "stage"]
    assert (worlds, stages) == ([1, 2], [(0, 1), (1, 1), (2, 1), (3, 2)])
    assert_same_training(run, undisturbed)


def test_killed_in_a_stage_and_stopped_at_every_boundary_the_run_is_as_if_nothing_had_happened(run, undisturbed, assert_same_training):
    words = ["checkpoint.every_steps=3", "trainer.num_nodes=2"]
    supervisor = run.start(*words)
    wait_for_rows(run, 5, supervisor)
    supervisor.kill()
    supervisor.communicate()
    wait_until_all_have_ended(run.path)
    done = run.pretrain(*words)
    assert done.returncode == 0, done.stderr
    assert "2 nodes emulated on this host" in done.stdout
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 1, 2: 1, 3: 2}
    assert [event["status"] for event in run.events if event["event"] == "stop"][-4:] == ["stage_boundary"] * 3 + ["complete"]
    assert_same_training(run, undisturbed)


ENDLESS = ["model.rampup_batch_size=null", "trainer.val_samples=0", "trainer.devices=2", "trainer.num_nodes=1", "data.micro_batch_size=1"]


def test_ctrl_c_saves_and_the_run_goes_on_from_there(run, assert_every_sample_is_read_once):
    supervisor = run.start(*ENDLESS, "trainer.max_samples=8_000_000")
    wait_for_rows(run, 3, supervisor)
    supervisor.send_signal(signal.SIGINT)
    output, errors = supervisor.communicate()
    assert supervisor.returncode == 130, errors
    assert run.state["status"] == "preempted"
    consumed = run.state["consumed_samples"]
    assert f"stopped after {consumed:,} samples" in output
    assert run.state["next"]["command"] in output
    assert [checkpoint.consumed_samples for checkpoint in run.directory.complete_checkpoints()] == [consumed]
    done = run.pretrain(*ENDLESS, f"trainer.max_samples={consumed + 24}")
    assert done.returncode == 0, done.stderr
    assert run.rows[-1]["consumed_samples"] == consumed + 24
    assert_every_sample_is_read_once(run)


def test_a_second_supervisor_is_refused_and_a_terminated_one_saves(run):
    words = [*ENDLESS, "trainer.devices=1", "trainer.max_samples=8_000_000"]
    supervisor = run.start(*words)
    wait_for_rows(run, 1, supervisor)
    second = run.pretrain(*words)
    assert (second.returncode, "is in use by another rampcli" in second.stderr) == (2, True)
    supervisor.terminate()
    _, errors = supervisor.communicate()
    assert supervisor.returncode == 75, errors
    assert [checkpoint.consumed_samples for checkpoint in run.directory.complete_checkpoints()] == [run.state["consumed_samples"]]


def test_workers_and_agents_end_with_a_supervisor_that_is_killed(run):
    supervisor = run.start(*ENDLESS, "trainer.max_samples=8_000_000")
    wait_for_rows(run, 1, supervisor)
    supervisor.kill()
    supervisor.communicate()
    wait_until_all_have_ended(run.path)


def wait_for_rows(run, count, supervisor) -> None:
    while len(run.rows) < count:
        assert supervisor.poll() is None, supervisor.communicate()
        time.sleep(0.01)


def wait_until_all_have_ended(run_dir: Path) -> None:
    deadline = time.monotonic() + 20
    while left := [command for command in commands_of_this_machine() if str(run_dir) in command]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.05)


def commands_of_this_machine() -> list[str]:
    commands = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            commands.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended since
            continue
    return commands
