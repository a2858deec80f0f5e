import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.elastic import Nodes, World
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory


def of_four_nodes(*words: str) -> Resolved:
    given = ["trainer.num_nodes=4", "trainer.devices=1", "data.micro_batch_size=1"]
    given += ["model.global_batch_size=12", "model.rampup_batch_size=null"]
    settings = dict(word.split("=", 1) for word in [*given, *words])
    return resolve(
        apply_overrides(
            llm.from_factory("llama3_tiny"), [f"{key}={value}" for key, value in settings.items()]
        )
    )


@pytest.mark.parametrize(
    ("words", "nodes", "training"),
    [
        ([], 4, 4),
        ([], 5, 4),
        (["model.global_batch_size=7", "trainer.num_nodes=7"], 6, 1),
        (["parallel.tensor_parallel_size=2"], 5, 4),
        (["parallel.tensor_parallel_size=2"], 1, 0),
        (["parallel.data_parallel_shard_size=2"], 5, 4),
        (
            [
                "parallel.data_parallel_shard_size=2",
                "parallel.tensor_parallel_size=2",
                "trainer.num_nodes=4",
            ],
            3,
            0,
        ),
        (["data.micro_batch_size=3"], 3, 2),
        (["data.micro_batch_size=3", "rampup.micro_batch=largest"], 3, 3),
        # The same processes train both stages: three ranks divide the batch of the second alone.
        (
            [
                "model.rampup_batch_size=[4,8,40]",
                "rampup.at_boundary=continue",
                "rampup.node_policy=fixed",
            ],
            3,
            2,
        ),
    ],
)
def test_the_largest_number_of_ranks_that_fits_trains(words, nodes, training):
    world = World.largest(of_four_nodes(*words), range(nodes), consumed_samples=0)
    assert (world.ranks, world.reason is None) == (training, training == nodes)


@pytest.fixture
def nodes(tmp_path):
    resolved = of_four_nodes("model.global_batch_size=4", "launch.elastic=true")
    return Nodes(resolved=resolved, run=RunDirectory(tmp_path), stage=resolved.plan.stages[0])


def test_lost_nodes_are_left_out_until_they_are_restarted(nodes):
    assert nodes.world() == World(nodes=(0, 1, 2, 3), ranks=4)
    assert nodes.mark_lost([1], wait_s=60) == "the remaining 3 nodes continue"
    world = nodes.world()
    assert (world.nodes, world.ranks, world.spare_ranks) == ((0, 2, 3), 2, 1)
    nodes.back_at[1] = 0
    assert nodes.can_grow(world)
    assert nodes.world() == World(nodes=(0, 1, 2, 3), ranks=4)


def test_a_restarted_node_that_does_not_enlarge_the_world_stops_no_training(nodes):
    nodes.mark_lost([0, 1], wait_s=60)
    world = nodes.world()
    assert (world.nodes, world.ranks, nodes.can_grow(world)) == ((2, 3), 2, False)
    nodes.back_at[0] = 0
    assert not nodes.can_grow(world)
    nodes.back_at[1] = 0
    assert nodes.can_grow(world)


def test_without_enough_nodes_the_run_waits(nodes):
    assert nodes.mark_lost(range(4), wait_s=60) == "no node remains (launch.min_nodes=1)"
    assert nodes.world() is None
    nodes.back_at[3] = 0
    assert nodes.world().nodes == (3,)
