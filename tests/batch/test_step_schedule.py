from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles import RAMPS
from rampcli.batch.nodes import Fleet
from rampcli.batch.plan import BatchPlan, ParallelSizes
from rampcli.batch.ramp import MOST_SIZES, RampSchedule, Threshold
from rampcli.batch.run_settings import BatchSettings
from rampcli.batch.step_schedule import (
    from_step_schedule,
    schedule_text,
    threshold_unit,
    to_entries,
)
from rampcli.batch.training_plan import plan_training
from rampcli.errors import UsageError

CASES = RAMPS["step_schedule"]
READ = [case for case in CASES if case["error"] is None]
WITH_DECREASE = [
    case
    for case in CASES
    if case["error"] and "--decrease-batch-size-if-needed" in case["error"]["message"]
]
REFUSED = [case for case in CASES if case["error"] and case not in WITH_DECREASE]

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
ENTRIES = st.dictionaries(st.integers(1, 10**14), st.integers(1, 8192), max_size=8).flatmap(
    lambda later: st.integers(1, 8192).map(lambda first: {0: first} | dict(sorted(later.items())))
)
"""Batch sizes by threshold, the first at 0, growing or shrinking."""


def text_of(case):
    """Returns the schedule of a case. Without a sequence length, its thresholds are samples."""
    if case.get("in_steps"):
        return f"steps: {case['schedule']}"
    return case["schedule"] if case["seq_length"] else f"samples: {case['schedule']}"


def schedule_of(case):
    return from_step_schedule(text_of(case), sequence_length=case["seq_length"] or 1)


def plan_of(case, **settings):
    return plan_training(
        batch=BatchSettings(
            micro_batch_size=case["micro_batch_size"],
            step_batch_size_schedule=text_of(case),
            **settings,
        ),
        fleet=Fleet(num_nodes=1, devices=case["data_parallel_size"], parallel=ParallelSizes()),
        node_policy="fixed",
        sequence_length=case["seq_length"] or 1,
    )


def pairs(ramp):
    return [(threshold.first_sample, threshold.global_batch_size) for threshold in ramp.thresholds]


@st.composite
def written(draw, count):
    """A count as a user may write it."""
    unit = draw(
        st.sampled_from([unit for unit, size in UNITS.items() if count % (size // 10 or 1) == 0])
    )
    tenths = count * 10 // UNITS[unit]
    whole = draw(st.sampled_from([f"{tenths // 10}", f"{tenths // 10:_}"]))
    return f"{whole}.{tenths % 10}{unit}" if tenths % 10 else f"{whole}{unit}"


@pytest.mark.parametrize("case", READ, ids=lambda case: case["schedule"])
def test_a_schedule_is_parsed_as_in_megatron(case):
    schedule = schedule_of(case)
    assert pairs(schedule) == [tuple(entry) for entry in case["parsed"]]
    assert schedule.target == case["final_global_batch_size"]


@pytest.mark.parametrize("case", READ, ids=lambda case: case["schedule"])
def test_the_batch_at_a_sample_equals_megatrons(case):
    for probe in case["probes"]:
        if "error" in probe:
            continue
        size = schedule_of(case).global_batch_size_at(probe["consumed_samples"])
        plan = BatchPlan.divide(
            size,
            micro_batch_size=case["micro_batch_size"],
            data_parallel_size=case["data_parallel_size"],
        )
        assert (plan.global_batch_size, plan.accumulate_grad_batches) == (
            probe["gbs"],
            probe["num_microbatches"],
        )


def test_a_batch_on_which_megatron_fails_later_is_refused_before_the_start():
    [(case, probe)] = [
        (case, probe) for case in READ for probe in case["probes"] if "error" in probe
    ]
    assert probe["error"]["phase"] == "update"
    with pytest.raises(UsageError, match=r"batch 6 \(stage 1\) is not a multiple of 4"):
        plan_of(case)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["schedule"])
def test_a_schedule_that_megatron_refuses_is_refused(case):
    with pytest.raises(UsageError) as refusal:
        schedule_of(case)
    assert refusal.value.message.startswith(f"model.step_batch_size_schedule={text_of(case)!r}")
    assert refusal.value.keys[0] == "model.step_batch_size_schedule"
    assert refusal.value.remedy


@pytest.mark.parametrize(
    "case",
    [*WITH_DECREASE, *({**case, "in_steps": True} for case in WITH_DECREASE)],
    ids=lambda case: text_of(case),
)
def test_sizes_of_a_step_schedule_are_never_decreased(case):
    assert plan_of(case).ramp == schedule_of(case)
    with pytest.raises(UsageError) as refusal:
        plan_of(case, decrease_batch_size_if_needed=True)
    assert refusal.value.keys == (
        "rampup.decrease_batch_size_if_needed",
        "model.step_batch_size_schedule",
    )


def test_every_case_of_the_oracle_is_tested():
    assert (len(READ), len(REFUSED), len(WITH_DECREASE)) == (10, 8, 1)


def megatrons_number(text):
    """Megatron's `_parse_numeric_value` before it truncates."""
    text = text.strip().upper()
    unit = text[-1:] if text[-1:] in UNITS else ""
    return float(text.removesuffix(unit)) * UNITS[unit]


@given(text=st.text("0123456789._eE+kKmMbBtT", min_size=1, max_size=8))
def test_a_number_is_read_as_megatron_reads_it_or_is_not_whole(text):
    try:
        expected = megatrons_number(text)
    except ValueError:
        expected = None
    try:
        (_, size), *_ = pairs(from_step_schedule(f"0:{text}", sequence_length=1))
    except UsageError:
        assert expected is None or not 1 <= expected < 1e99 or not expected.is_integer()
    else:
        assert expected == pytest.approx(size, rel=1e-12)


def test_a_batch_that_megatron_would_truncate_is_refused():
    with pytest.raises(
        UsageError, match=r"'0:1.2345K' is not THRESHOLD:BATCH_SIZE, two whole numbers"
    ):
        from_step_schedule("0:1.2345K", sequence_length=1)


@given(entries=ENTRIES, data=st.data())
def test_entries_mean_the_same_in_any_order_with_any_separator_and_unit(entries, data):
    words = [
        f"{data.draw(written(count))}:{data.draw(written(size))}" for count, size in entries.items()
    ]
    separator = data.draw(st.sampled_from([" ", ",", ", ", " , ", "  "]))
    text = separator.join(data.draw(st.permutations(words)))
    assert pairs(from_step_schedule(f"samples: {text}", sequence_length=8192)) == list(
        entries.items()
    )


@given(entries=ENTRIES)
def test_a_schedule_written_as_text_is_read_back_unchanged(entries):
    thresholds = tuple(Threshold(first_sample, size) for first_sample, size in entries.items())
    assert from_step_schedule(schedule_text(thresholds), sequence_length=8192) == RampSchedule(
        thresholds=thresholds
    )


@given(entries=ENTRIES, sequence_length=st.integers(1, 10**6))
def test_a_threshold_in_steps_is_reached_after_exactly_as_many_steps(entries, sequence_length):
    text = " ".join(f"{step}:{size}" for step, size in entries.items())
    ramp = from_step_schedule(f"steps: {text}", sequence_length=sequence_length)
    stages = [(stage.first_step, stage.global_batch_size) for stage in ramp.stages]
    assert stages == list(entries.items())


def test_the_stages_of_a_schedule_in_steps_have_whole_steps_also_as_samples_and_as_tokens():
    ramp = from_step_schedule("steps: 0:512 50K:1024 115K:2048", sequence_length=2048)
    assert [(stage.first_step, stage.steps, stage.samples) for stage in ramp.stages] == [
        (0, 50_000, 25_600_000),
        (50_000, 65_000, 66_560_000),
        (115_000, None, None),
    ]
    tokens = to_entries(ramp.thresholds, per_sample=2048)
    assert from_step_schedule(tokens, sequence_length=2048) == ramp
    assert from_step_schedule(schedule_text(ramp.thresholds), sequence_length=1) == ramp


@given(entries=ENTRIES, sequence_length=st.integers(1, 10**6))
def test_a_threshold_in_tokens_is_rounded_down_to_samples_and_two_at_one_sample_are_refused(
    entries, sequence_length
):
    text = " ".join(f"{tokens}:{size}" for tokens, size in entries.items())
    expected = [(tokens // sequence_length, size) for tokens, size in entries.items()]
    if len({first_sample for first_sample, _ in expected}) < len(expected):
        with pytest.raises(UsageError) as refusal:
            from_step_schedule(text, sequence_length=sequence_length)
        assert (
            "tokens are the same threshold"
            f" (data.sequence_length={sequence_length} tokens make one sample)"
            in refusal.value.message
        )
        assert refusal.value.keys == ("model.step_batch_size_schedule", "data.sequence_length")
    else:
        assert pairs(from_step_schedule(text, sequence_length=sequence_length)) == expected
        assert from_step_schedule(
            f"tokens: {text}", sequence_length=sequence_length
        ) == from_step_schedule(text, sequence_length=sequence_length)


def test_a_repeated_threshold_is_refused_without_naming_the_sequence_length():
    with pytest.raises(UsageError) as refusal:
        from_step_schedule("0:4 10K:8 10_000:8", sequence_length=8)
    assert refusal.value.message.endswith("the threshold 10000 is given twice")
    assert refusal.value.keys == ("model.step_batch_size_schedule",)


@pytest.mark.parametrize("unit", ["samples", "steps"])
@given(entries=ENTRIES, gap=st.integers(1, 10**6))
def test_a_schedule_without_a_first_batch_is_refused_and_the_remedy_adds_one(unit, entries, gap):
    late = {count + gap: size for count, size in entries.items()}
    text = f"{unit}: " + " ".join(f"{count}:{size}" for count, size in late.items())
    with pytest.raises(
        UsageError, match=f"begins at {gap}: there is no batch size for the first step"
    ) as refusal:
        from_step_schedule(text, sequence_length=1)
    entry = refusal.value.remedy.removeprefix("an entry ")
    added = " ".join(f"{count}:{size}" for count, size in ({0: entries[0]} | late).items())
    assert from_step_schedule(f"{text} {entry}", sequence_length=1) == from_step_schedule(
        f"{unit}: {added}", sequence_length=1
    )


@given(entries=ENTRIES, data=st.data())
def test_from_a_threshold_on_the_batch_is_the_given_one_whether_larger_or_smaller(entries, data):
    ramp = from_step_schedule(
        schedule_text([Threshold(*entry) for entry in entries.items()]), sequence_length=1
    )
    consumed = data.draw(st.one_of(st.sampled_from(list(entries)), st.integers(0, 2 * 10**14)))
    assert ramp.global_batch_size_at(consumed) == next(
        size for count, size in reversed(entries.items()) if count <= consumed
    )


@given(entries=ENTRIES)
def test_stages_of_a_schedule_end_with_the_step_that_reaches_the_next_threshold(entries):
    ramp = from_step_schedule(
        schedule_text([Threshold(*entry) for entry in entries.items()]), sequence_length=1
    )
    for stage, following in pairwise(ramp.stages):
        due = next(count for count in entries if count > stage.first_sample)
        assert (
            stage.end_sample - stage.global_batch_size
            < due
            <= stage.end_sample
            == following.first_sample
        )
        assert ramp.global_batch_size_at(stage.end_sample) == following.global_batch_size
    assert ramp.stages[-1].global_batch_size == list(entries.values())[-1]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0:4 10", "10"),
        ("0", "0"),
        ("0:4:8", "0:4:8"),
        ("0:", "0:"),
        (":4", ":4"),
        ("0:4 ten:8", "ten:8"),
        ("0:4 -10:8", "-10:8"),
        ("0:4 10:-8", "10:-8"),
        ("0:4 10:8.5", "10:8.5"),
        ("0:4 0.0001K:8", "0.0001K:8"),
        ("0:4;10:8", "0:4;10:8"),
    ],
)
def test_an_invalid_entry_is_refused_by_name(text, word):
    with pytest.raises(UsageError) as refusal:
        from_step_schedule(text, sequence_length=1)
    assert refusal.value.message == (
        f"model.step_batch_size_schedule={text!r}: {word!r} is not THRESHOLD:BATCH_SIZE,"
        " two whole numbers like 250B:1536"
    )


@pytest.mark.parametrize("unit", ["tokens", "samples", "steps"])
def test_what_a_refusal_offers_can_be_typed_and_counts_what_the_schedule_counts(unit):
    for text in (f"{unit}: 0:4 ten:8", f"{unit}: 0:0", f"{unit}:", f"{unit[:-1]}: 0:4", unit):
        with pytest.raises(UsageError) as refusal:
            from_step_schedule(text, sequence_length=8192)
        [remedy] = refusal.value.remedies
        [offered] = remedy.values["model.step_batch_size_schedule"]
        assert threshold_unit(offered) == unit
        assert from_step_schedule(offered, sequence_length=8192)


@pytest.mark.parametrize("text", ["", "  ", ",", "samples:", "tokens: ", "steps:"])
def test_a_schedule_without_entries_is_refused(text):
    with pytest.raises(UsageError) as refusal:
        from_step_schedule(text, sequence_length=1)
    assert refusal.value.keys == ("model.step_batch_size_schedule",)


def test_more_entries_than_a_schedule_may_have_are_refused():
    words = [f"{count}:{count % 7 + 1}" for count in range(MOST_SIZES + 1)]
    assert (
        len(from_step_schedule(f"samples: {' '.join(words[:-1])}", sequence_length=1).thresholds)
        == MOST_SIZES
    )
    with pytest.raises(
        UsageError, match=f"has {MOST_SIZES + 1} entries; the limit is {MOST_SIZES}"
    ):
        from_step_schedule(f"samples: {' '.join(words)}", sequence_length=1)


@pytest.mark.parametrize(
    ("text", "named"),
    [("ten:8 10:8", "ten:8"), ("zero:4 100:8", "zero:4"), ("step: 0:4 ten:8", "step:")],
)
def test_a_wrong_entry_is_not_taken_for_a_unit_and_the_remedy_is_read(text, named):
    with pytest.raises(UsageError) as refusal:
        from_step_schedule(text, sequence_length=1)
    assert f": {named!r} " in refusal.value.message
    [offered] = refusal.value.remedies[0].values["model.step_batch_size_schedule"]
    from_step_schedule(offered, sequence_length=1)
