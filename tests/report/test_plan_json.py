from dataclasses import asdict

import pytest

from rampcli.planning.choices import compilation_of, ways_to_reduce
from rampcli.planning.stage_memory import stage_memory
from rampcli.report.plan_json import plan_json
from rampcli.report.plan_notes import all_notes


def test_the_json_of_a_plan_has_the_memory_of_each_stage_and_the_size_of_the_model(planned):
    resolved = planned("gpt3_5b")
    data = plan_json(resolved)
    peaks = [stage_memory(resolved.phases[0], stage).peak_bytes for stage in resolved.plan.stages]
    assert [stage.pop("memory_bytes") for stage in data["stages"]] == peaks
    seconds = [stage.pop("seconds") for stage in data["stages"]]
    assert seconds == [resolved.plan.stage_s(stage) for stage in resolved.plan.stages]
    assert {stage.pop("seconds_from") for stage in data["stages"]} == {"declared"}
    assert data.pop("seconds") == pytest.approx(sum(seconds) + 7 * 60)
    assert (data.pop("parameters"), data.pop("corpora")) == (5_047_558_144, [])
    assert data.pop("embedding_parameters") == (50_304 + 2048) * 4096
    ways = {name: asdict(way) for name, way in ways_to_reduce(resolved.phases[0]).items()}
    chosen = resolved.config.trainer.accumulate_reduce
    assert data.pop("gradient_reduction") == {"chosen": chosen, **ways}
    costs = asdict(compilation_of(resolved.phases[0]))
    assert data.pop("compilation") == {"chosen": resolved.config.trainer.compile, **costs}
    assert data.pop("retuning") is None
    assert data.pop("notes") == all_notes(resolved)
    coupled = {"lr_factor": 1.0, "beta2": None, "weight_decay": None}
    for stage in data["stages"]:
        assert coupled.items() <= stage.items()
        for name in coupled:
            del stage[name]
    assert data == resolved.plan.to_json()


def test_the_json_of_a_plan_has_what_follows_the_batch_in_each_stage(planned):
    words = ("schedule.lr_factors=[1,2,2.5]", "schedule.weight_decay_coupling=timescale")
    words += ("model.step_batch_size_schedule='steps: 0:512 9:1024 12:2048'",)
    resolved = planned("gpt3_5b", *words, "schedule.beta2_coupling=half_life")
    rows = plan_json(resolved)["stages"]
    assert [row["lr_factor"] for row in rows] == [1, 2, 2.5]
    assert [row["beta2"] for row in rows] == pytest.approx([0.95**0.25, 0.95**0.5, 0.95])
    assert [row["weight_decay"] for row in rows] == pytest.approx([0.025, 0.025, 0.04])
