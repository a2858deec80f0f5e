from dataclasses import asdict

from rampcli.planning.compilation import compilation_of
from rampcli.planning.reduction import ways_to_reduce
from rampcli.planning.stage_memory import stage_memory
from rampcli.report.plan_json import plan_json
from rampcli.report.plan_notes import all_notes


def test_the_json_of_a_plan_has_the_memory_of_each_stage_and_the_size_of_the_model(planned):
    resolved = planned("gpt3_5b")
    data = plan_json(resolved)
    peaks = [stage_memory(resolved, stage).peak_bytes for stage in resolved.plan.stages]
    assert [stage.pop("memory_bytes") for stage in data["stages"]] == peaks
    assert (data.pop("parameters"), data.pop("corpora")) == (5_047_558_144, [])
    assert data.pop("embedding_parameters") == (50_304 + 2048) * 4096
    ways = {name: asdict(way) for name, way in ways_to_reduce(resolved).items()}
    chosen = resolved.config.trainer.accumulate_reduce
    assert data.pop("gradient_reduction") == {"chosen": chosen, **ways}
    costs = asdict(compilation_of(resolved))
    assert data.pop("compilation") == {"chosen": resolved.config.trainer.compile, **costs}
    assert data.pop("retuning") is None
    assert data.pop("notes") == all_notes(resolved)
    assert data == resolved.plan.to_json()
