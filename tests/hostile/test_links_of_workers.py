"""Workers never write through a link to a place outside the run directory."""

from contextlib import suppress

import pytest

from hostile.laws import changes
from hostile.world import World, edit_text, fifo, link, snapshot
from ranks import run_ranks, train_rank

PLANTS = {
    "a link at events.jsonl": link("run/events.jsonl"),
    "a link at metrics.jsonl": link("run/metrics.jsonl"),
    "a link at workers.lock": link("run/workers.lock"),
    "a link at state.json": link("run/state.json"),
    "a link at checkpoints": link("run/checkpoints", "folder"),
    "a link at the next checkpoint": link("run/checkpoints/step_00000005", "folder"),
    "a link at the temporary folder of the next checkpoint": link(
        "run/checkpoints/step_00000005.tmp", "folder"
    ),
    "a link at an older checkpoint": link("run/checkpoints/step_00000001", "folder"),
    "a FIFO at events.jsonl": fifo("run/events.jsonl"),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_a_worker_follows_no_link_out_of_its_run_directory(plant, materials, tmp_path):
    world = World.build(tmp_path, materials, ("run", "corpus"))
    edit_text("run/config.yaml", "max_samples: 16", "max_samples: 20")(world)
    plant(world)
    before = snapshot(tmp_path)
    with suppress(AssertionError):  # the worker may refuse to train
        run_ranks(1, train_rank, "run", logs=tmp_path / "logs", folders=[world.here])
    assert changes(before, snapshot(tmp_path), writes=["here/run", "logs"]) == []
    assert "Traceback" not in (tmp_path / "logs/rank_0.txt").read_text()
