import pytest

from rampcli.config.compose import apply_overrides
from rampcli.planning.out_of_memory import changes_that_fit, out_of_memory
from rampcli.planning.resolve import resolve
from rampcli.planning.stage_memory import GIB, stage_memory

ONE_NODE = ("llama3_8b", "trainer.num_nodes=1", "trainer.devices=8")
RAMP = (
    *ONE_NODE,
    "model.rampup_batch_size=[4,60,100000]",
    "model.global_batch_size=64",
    "rampup.node_policy=fixed",
)
RUNS = {
    "a ramp": (("gpt3_5b",), 28),
    "two changes": (("gpt3_5b",), 17),
    "a pinned accumulation": (("llama3_8b", "trainer.accumulate_grad_batches=128"), 36),
    "a batch that follows": (
        (*ONE_NODE, "model.global_batch_size=null", "trainer.accumulate_grad_batches=16"),
        50,
    ),
    "groups of shards": (("gpt3_5b", "parallel.data_parallel_shard_size=2"), 59),
    "a pipeline": ((*ONE_NODE, "parallel.pipeline_parallel_size=4", "data.micro_batch_size=8"), 60),
    "parts of micro batches": (
        (
            *ONE_NODE,
            "parallel.pipeline_parallel_size=4",
            "parallel.num_pipeline_microbatches=4",
            "data.micro_batch_size=16",
        ),
        60,
    ),
    "micro batches that grow": (
        (*RAMP, "rampup.micro_batch=largest", "data.micro_batch_size=8"),
        60,
    ),
}
"""Words of a run, and the usable memory in GiB."""


def peak(resolved) -> int:
    return max(stage_memory(resolved.phases[0], stage).peak_bytes for stage in resolved.plan.stages)


def batches(resolved) -> list[int]:
    return [stage.global_batch_size for stage in resolved.plan.stages]


@pytest.mark.parametrize("name", RUNS)
def test_each_remedy_fits_and_trains_the_same_batches(planned, name):
    words, usable_gb = RUNS[name]
    resolved = planned(*words)
    assert peak(resolved) > usable_gb * GIB
    changes = changes_that_fit(resolved.phases[0], usable_gb * GIB)
    assert changes
    for change in changes:
        changed = resolve(apply_overrides(resolved.config, str(change).split()))
        assert peak(changed) <= usable_gb * GIB
        assert batches(changed) == batches(resolved)


def test_a_remedy_changes_no_more_than_it_must(planned):
    resolved = planned(*ONE_NODE, "model.global_batch_size=64", "data.micro_batch_size=8")
    for usable_gb in (55, 80, 150):
        changes = changes_that_fit(resolved.phases[0], usable_gb * GIB)
        assert len({len(change.values) for change in changes}) == 1
        for change in changes:
            for word in str(change).split() if len(change.values) > 1 else ():
                changed = resolve(apply_overrides(resolved.config, [word]))
                assert peak(changed) > usable_gb * GIB


def test_the_remedy_is_the_largest_micro_batch_that_fits(planned):
    ((size,),) = (
        change.values["data.micro_batch_size"]
        for change in changes_that_fit(planned("gpt3_5b").phases[0], 40 * GIB)
        if "data.micro_batch_size" in change.values
    )
    larger = [each for each in (1, 2, 4) if each > size]
    assert larger
    for each in larger:
        assert peak(planned("gpt3_5b", f"data.micro_batch_size={each}")) > 40 * GIB


def test_finished_stages_that_do_not_divide_today_do_not_matter(planned):
    words = [*RAMP[1:], "data.micro_batch_size=8"]
    stack = apply_overrides(planned("llama3_8b").config, words)
    resumed = resolve(stack, consumed_samples_in=lambda _: 200_000)
    assert resumed.plan.passed
    assert changes_that_fit(resumed.phases[0], 80 * GIB)


def test_nothing_is_named_if_nothing_fits(planned):
    assert changes_that_fit(planned("llama3_8b").phases[0], GIB) == []


@pytest.mark.parametrize("name", RUNS)
def test_a_run_out_of_memory_names_changes_that_need_less_than_it_did(planned, name):
    words, _ = RUNS[name]
    resolved = planned(*words, "trainer.device_memory_gb=null", "trainer.accelerator=cpu")
    first = resolved.plan.stages[0]
    error = out_of_memory(resolved, consumed_samples=0, reason="rank 0 is out of memory")
    assert f"data.micro_batch_size={first.micro_batch_size} and" in error.message
    *changes, _ = map(str, error.remedies)
    for change in changes:
        changed = resolve(apply_overrides(resolved.config, change.split()))
        assert peak(changed) < stage_memory(resolved.phases[0], first).peak_bytes
