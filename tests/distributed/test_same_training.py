import json

from rampcli.machine.host import processor_name
from tiny_runs import assert_same_training


def test_micro_batches_that_grow_with_the_batch_change_nothing(run, undisturbed):
    """The first stage is trained with one micro batch, the others with the largest of each."""
    words = ["rampup.node_policy=fixed", "rampup.at_boundary=continue"]
    run.complete("--one-stage", "rampup.node_policy=fixed", "trainer.num_nodes=1")
    run.workers(2, *words, "rampup.micro_batch=largest", "data.micro_batch_size=3")
    assert {
        (row["global_batch_size"], row["world_size"], row["accumulate_grad_batches"])
        for row in run.rows
    } == {(2, 1, 1), (4, 2, 1), (6, 2, 1), (8, 2, 2)}
    assert_same_training(run, undisturbed)


def test_three_processes_with_uneven_shards_train_as_one_does(run):
    words = [
        "model.rampup_batch_size=[3,3,30]",
        "model.global_batch_size=9",
        "data.micro_batch_size=1",
        "rampup.at_boundary=continue",
    ]
    alone = run.beside("alone")
    alone.workers(1, "rampup.node_policy=fixed", *words)
    run.workers(3, "rampup.node_policy=fixed", *words)
    assert_same_training(run, alone)


def test_resuming_every_stage_by_hand_with_twice_the_processes_changes_nothing(run):
    words = [
        "rampup.node_policy=fixed",
        "data.micro_batch_size=1",
        "model.rampup_batch_size=[4,4,48]",
        "model.global_batch_size=12",
    ]
    alone = run.beside("alone")
    alone.workers(1, "rampup.at_boundary=continue", *words)
    for stage, processes in enumerate((1, 2, 4)):
        done = run.complete("--one-stage", *words, f"trainer.num_nodes={processes}")
        assert run.rows[-1]["stage"] == stage
        if stage < 2:
            assert run.state["status"] == "stage_boundary"
            coming = run.state["next"]
            assert coming.pop("command") in done.stdout
            sizes = {"global_batch_size": 8 + 4 * stage, "num_nodes": processes}
            assert coming == sizes | {"stage": stage + 1}
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 2, 2: 4}
    assert_same_training(run, alone)


def test_finished_stages_need_not_fit_the_processes_that_resume(run, undisturbed):
    words = ["rampup.node_policy=fixed", "data.micro_batch_size=1"]
    grown = [*words, "trainer.num_nodes=4"]
    refused = run.pretrain(*grown)
    assert refused.returncode == 2
    assert "batches 2 (stage 0) and 6 (stage 2) are not multiples of 4" in refused.stderr
    for _ in range(3):
        assert run.pretrain("--one-stage", *words, "trainer.num_nodes=1").returncode == 0
    planned = run.complete("--dry-run", *grown)
    assert "note: stages 0 to 2 are finished and do not fit today's nodes" in planned.stdout
    run.complete(*grown)
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 1, 2: 1, 3: 4}
    assert [
        stage["num_nodes"] for stage in json.loads((run.path / "plan.json").read_text())["stages"]
    ] == [None, None, None, 4]
    assert_same_training(run, undisturbed)


def test_stages_train_on_listed_nodes_and_a_list_may_change_between_them(run, undisturbed):
    words = ["trainer.num_nodes=2", "data.micro_batch_size=1", "rampup.at_boundary=continue"]
    run.complete("--one-stage", *words, "rampup.nodes=[1,2,1,1]")
    assert run.state["next"]["num_nodes"] == 2
    done = run.complete(*words, "rampup.nodes=[1,2,2,1]")
    assert "note: rampup.nodes changes from [1,2,1,1] to [1,2,2,1] after step" in done.stdout
    assert {row["stage"]: row["world_size"] for row in run.rows} == {0: 1, 1: 2, 2: 2, 3: 1}
    assert_same_training(run, undisturbed)


def test_a_step_schedule_that_shrinks_trains_the_same_on_any_number_of_processes(run):
    words = [
        "model.rampup_batch_size=null",
        "model.global_batch_size=null",
        "model.step_batch_size_schedule='steps: 0:2 10:6 15:4'",
        "data.micro_batch_size=1",
        "schedule.decay_style=wsd",
        "schedule.batch_coupling=sqrt",
        "schedule.beta2_coupling=half_life",
        "schedule.weight_decay_coupling=timescale",
    ]
    alone = run.beside("alone")
    alone.workers(1, "rampup.at_boundary=continue", "rampup.node_policy=fixed", *words)
    run.complete("rampup.node_policy=best", "trainer.num_nodes=3", *words)
    assert {row["stage"]: (row["global_batch_size"], row["world_size"]) for row in run.rows} == {
        0: (2, 2),
        1: (6, 3),
        2: (4, 2),
    }
    assert_same_training(run, alone)


def test_a_ramp_that_continues_grows_in_place_and_restarts_only_for_more_processes(
    run, undisturbed
):
    run.complete("rampup.at_boundary=continue", "trainer.num_nodes=2")
    starts = run.events_of("start")
    assert {event["device_name"] for event in starts} == {processor_name()}
    worlds = [event["world_size"] for event in starts]
    stages = [(event["stage"], event["world_size"]) for event in run.events_of("stage")]
    assert (worlds, stages) == ([1, 2], [(0, 1), (1, 1), (2, 1), (3, 2)])
    assert_same_training(run, undisturbed)
