import pytest

from rampcli.report.plan_json import plan_json
from rampcli.report.plan_notes import all_notes
from rampcli.report.plan_tables import plan_summary


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (
            ("gpt3_5b", "trainer.max_samples=1M"),
            "the run ends before the ramp reaches its target 2048",
        ),
        (
            ("gpt3_5b", "trainer.max_samples=10_000_129"),
            "a run ends with a whole step: 10,002,176 samples, not trainer.max_samples=10000129",
        ),
        (
            ("gpt3_5b", "model.step_batch_size_schedule='0:1024 1B:512'"),
            "the batch shrinks, as scheduled: 1024 to 512 after 488,448 samples",
        ),
        (
            ("gpt3_5b", "parallel.pipeline_parallel_size=2", "num_pipeline_microbatches=4"),
            "the pipeline splits a rank's micro batch of 4 samples into 4 parts of 1",
        ),
        (
            (
                *("llama3_tiny", "noise_scale.every_steps=8", "data.micro_batch_size=1"),
                *("model.global_batch_size=4", "model.rampup_batch_size=[1,1,100]"),
            ),
            "noise_scale.every_steps does not measure stage 0: a step needs two micro batches, or"
            " two samples without a pipeline",
        ),
        (
            (
                "llama3_tiny",
                "average.merge=last:6",
                "checkpoint.keep_last=6",
                "checkpoint.every_steps=300",
            ),
            "average.merge=last:6 needs 6 checkpoints, and the run saves at most 5: a smaller"
            " checkpoint.every_steps saves more",
        ),
        (
            ("gpt3_5b", "average.merge=from:1B", "trainer.max_samples=100K"),
            "average.merge=from:1B begins after the end of the run: nothing is averaged in its"
            " 204,996,608 tokens",
        ),
        (
            ("gpt3_5b", "average.ema=100M", "trainer.max_samples=100K"),
            "average.ema=100000000 is long for a run of 204,996,608 tokens: at its end, 24% of the"
            " average are still the weights with which it began",
        ),
        (
            ("gpt3_5b", "schedule.weight_decay_coupling=timescale", "optim.weight_decay=0"),
            "schedule.weight_decay_coupling=timescale changes nothing: optim.weight_decay is 0",
        ),
        (
            (
                *("gpt3_5b", "schedule.weight_decay_coupling=timescale"),
                "schedule.batch_coupling=linear",
            ),
            "schedule.weight_decay_coupling=timescale changes nothing: the learning rate is scaled"
            " as the batch is",
        ),
        (
            ("gpt3_5b", "schedule.beta2_coupling=half_life", "optim.beta2=0"),
            "schedule.beta2_coupling=half_life changes nothing: optim.beta2 is 0",
        ),
        (
            ("llama3_8b", "schedule.beta2_coupling=half_life", "schedule.batch_coupling=sqrt"),
            "every batch has the size 512, so schedule.batch_coupling=sqrt and"
            " schedule.beta2_coupling=half_life change nothing within the run",
        ),
        (
            ("llama3_tiny", "schedule.beta2_coupling=half_life"),
            "schedule.beta2_coupling=half_life is for the parameters that AdamW trains; Muon's"
            " momentum stays",
        ),
        (
            ("llama3_tiny", "schedule.weight_decay_coupling=timescale"),
            "schedule.weight_decay_coupling=timescale is a rule of AdamW (arXiv 2505.13738); it"
            " sets the weight decay of Muon's matrices, too",
        ),
        (
            ("gpt3_5b", "rampup.node_policy=best", "throughput.mfu=null"),
            "no throughput is known, so rampup.node_policy=best does not weigh restarts",
        ),
        (
            ("llama3_tiny", "data=text", "data.path=nowhere"),
            "data.path=nowhere does not exist on this machine",
        ),
        (
            ("gpt3_5b", "rampup.efficiency='8:0.4'"),
            "no throughput was measured for 4 x 1, 4 x 2, 4 x 3 and 4 x 4 (micro batch x"
            " accumulation), which is beyond the measured sizes: the hours, ? in tables, are"
            " unknown",
        ),
        (
            ("gpt3_5b", "rampup.efficiency='1:9000 4:11500'"),
            "no throughput was measured for 4 x 2 and 4 x 3 (micro batch x accumulation): the"
            " hours, marked ~ in tables, are interpolated",
        ),
        (
            ("gpt3_5b", "rampup.efficiency='1:9000 4:11500'", "rampup.node_policy=best"),
            "rampup.node_policy=best has no throughput for some of the nodes that stages 0, 1, 2,"
            " 3, 4 and 3 more could have, and assumed that of the nearest known size",
        ),
        (
            ("llama3_8b",),
            "128 micro batches per step add no throughput, they only amortise the exchange of"
            " gradients; a larger data.micro_batch_size may add some",
        ),
        (
            ("llama3_8b", "per_device_batch_size=4"),
            "per_device_batch_size=4 x 8 devices = 32 samples replaces"
            " model.global_batch_size=512 (batch/nemo_llama.yaml:8)",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_notes_of_table_and_json_name_unexpected_facts(planned, words, note):
    resolved = planned(*words)
    notes = all_notes(resolved)
    assert note in notes
    summary = plan_summary(resolved)
    assert [f"note: {each}" for each in notes] == [line for line in summary if "note: " in line]
    assert plan_json(resolved)["notes"] == notes


def test_an_ordinary_plan_has_no_notes(planned):
    for name in ("gpt3_5b", "llama3_tiny"):
        assert all_notes(planned(name)) == []


def test_couplings_that_act_on_every_parameter_need_no_note(planned):
    words = ("schedule.beta2_coupling=half_life", "schedule.weight_decay_coupling=timescale")
    plain, coupled = (all_notes(planned("gpt3_5b", *each)) for each in ((), words))
    assert coupled == plain
