from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plans import EVEN, fleet_of
from rampcli.batch.throughput import (
    EFFICIENCY_KEY,
    MOST_SURFACE_POINTS,
    Basis,
    Throughput,
    Work,
    check_curve,
    efficiency_text,
    parse_points,
)
from rampcli.errors import UsageError

MICRO, COUNTS = st.integers(1, 64), st.integers(1, 200)
RATES = st.floats(1, 1e6)
POINTS = st.dictionaries(st.tuples(MICRO, COUNTS), RATES, min_size=1, max_size=6)
ROUNDING = 1 - 1e-9


def rate(points, micro, count):
    measured = Throughput(points=points, basis="a test")
    return measured.tokens_per_s_per_gpu(count, micro_batch_size=micro)


def rising(points):
    """Returns points that are at least as fast as all points with smaller sizes."""
    return {
        (micro, count): max(
            rate for (one, other), rate in points.items() if one <= micro and other <= count
        )
        for micro, count in points
    }


@given(points=POINTS)
def test_the_rate_at_a_point_is_the_given_one(points):
    assert {point: rate(points, *point) for point in points} == points


@given(points=POINTS, micro=MICRO, count=COUNTS)
def test_a_rate_is_measured_at_a_point_interpolated_between_points_and_unknown_beyond(
    points, micro, count
):
    measured = Throughput(points=points, basis="a test")
    sizes, counts = zip(*points, strict=True)
    is_within = min(sizes) <= micro <= max(sizes) and min(counts) <= count <= max(counts)
    between = Basis.INTERPOLATED if is_within else Basis.UNKNOWN
    expected = Basis.MEASURED if (micro, count) in points else between
    assert measured.basis_of(count, micro_batch_size=micro) is expected


def test_a_declared_rate_is_known_for_every_size():
    declared = Throughput.constant(1.0, basis="a test")
    assert declared.basis_of(7, micro_batch_size=3) is Basis.DECLARED
    curve = Throughput(points={(1, 1): 1.0, (1, 4): 2.0}, any_size=True, basis="a test")
    bases = [curve.basis_of(count, micro_batch_size=3) for count in (1, 2, 5)]
    assert bases == [Basis.MEASURED, Basis.INTERPOLATED, Basis.UNKNOWN]


@given(points=POINTS, micro=MICRO, count=COUNTS, beyond=st.integers(0, 1000))
def test_the_rate_to_assume_is_constant_beyond_the_outermost_points(points, micro, count, beyond):
    sizes, counts = zip(*points, strict=True)
    assert rate(points, max(sizes) + beyond, count) == rate(points, max(sizes), count)
    assert rate(points, micro, max(counts) + beyond) == rate(points, micro, max(counts))
    assert rate(points, max(1, min(sizes) - beyond), count) == rate(points, min(sizes), count)
    assert rate(points, micro, max(1, min(counts) - beyond)) == rate(points, micro, min(counts))


@given(points=POINTS.map(rising), micro=MICRO, count=COUNTS)
def test_larger_sizes_are_never_slower_if_no_larger_point_is(points, micro, count):
    here = rate(points, micro, count) * ROUNDING
    assert rate(points, micro + 1, count) >= here
    assert rate(points, micro, count + 1) >= here


@given(
    exchange=st.floats(0, 10),
    each=st.floats(0, 10),
    per_sample=st.floats(0.01, 10),
    sizes=st.lists(MICRO, min_size=2, max_size=4, unique=True),
    counts=st.lists(COUNTS, min_size=2, max_size=4, unique=True),
    data=st.data(),
)
def test_a_step_that_takes_an_exchange_and_its_micro_batches_is_predicted_from_few_points(
    exchange, each, per_sample, sizes, counts, data
):
    def true_rate(micro, count):
        return micro * count / (exchange + count * (each + per_sample * micro))

    row = data.draw(st.sampled_from(sizes))
    measured = {(micro, counts[0]) for micro in sizes} | {(row, count) for count in counts}
    points = {point: true_rate(*point) for point in measured}
    micro = data.draw(st.integers(min(sizes), max(sizes)))
    count = data.draw(st.integers(min(counts), max(counts)))
    assert rate(points, micro, count) == pytest.approx(true_rate(micro, count), rel=1e-6)


def test_a_larger_micro_batch_is_faster_although_a_step_has_fewer_of_them():
    points = parse_points("1x1:9000 1x4:11500 8x1:14000")
    rates = [rate(points, micro, 32 // micro) for micro in (1, 2, 4, 8)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


@given(
    points=POINTS,
    separator=st.sampled_from([" ", ",", ", ", "  "]),
    shuffle=st.randoms(use_true_random=False),
)
def test_points_are_read_in_any_order_between_blanks_or_commas(points, separator, shuffle):
    words = [f"{micro}x{count}:{rate!r}" for (micro, count), rate in points.items()]
    shuffle.shuffle(words)
    assert parse_points(separator.join(words)) == points


def test_numbers_of_points_may_have_units():
    assert parse_points("1x1:9K 2x4:11.5K 1x1K:0.012M") == {
        (1, 1): 9000.0,
        (2, 4): 11500.0,
        (1, 1000): 12000.0,
    }


@given(points=st.dictionaries(COUNTS, RATES, min_size=1, max_size=6), micro=MICRO, count=COUNTS)
def test_points_without_a_micro_batch_size_hold_for_every_size(points, micro, count):
    read = parse_points(" ".join(f"{count}:{rate!r}" for count, rate in points.items()))
    assert rate(read, micro, count) == rate(read, 1, count)
    assert {count: rate(read, micro, count) for count in points} == points


@given(
    points=st.dictionaries(st.tuples(MICRO, COUNTS), st.integers(1, 999_999), min_size=1),
)
def test_points_written_as_text_are_read_back_unchanged(points):
    assert parse_points(efficiency_text(points)) == points


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("1", "1"),
        ("1:9000 4", "4"),
        ("9000", "9000"),
        ("0:9000", "0:9000"),
        ("-1:9000", "-1:9000"),
        ("1.5:9000", "1.5:9000"),
        ("a:9000", "a:9000"),
        ("1:a", "1:a"),
        ("1:", "1:"),
        (":9000", ":9000"),
        ("1:0", "1:0"),
        ("1:-9000", "1:-9000"),
        ("1:nan", "1:nan"),
        ("1:inf", "1:inf"),
        ("1:1e999", "1:1e999"),
        ("1:9000:2", "1:9000:2"),
        ("1:9000 4:9500 1:9100", "1:9100"),
        ("1x1:9000 4:11500", "4:11500"),
        ("1:9000 1x4:11500", "1:9000"),
        ("x1:9000", "x1:9000"),
        ("0x1:9000", "0x1:9000"),
        ("1x0:9000", "1x0:9000"),
        ("1x2x3:9000", "1x2x3:9000"),
        ("1x1:9000 01x1:9100", "01x1:9100"),
    ],
)
def test_an_invalid_or_repeated_entry_and_a_mixture_of_both_forms_are_refused(text, word):
    form = ("MICRO_BATCH_SIZEx" if "x" in text else "") + "MICRO_BATCHES:TOKENS_PER_SECOND"
    with pytest.raises(UsageError) as refusal:
        parse_points(text)
    assert f"{EFFICIENCY_KEY}={text!r}: {word!r} is not {form}" in refusal.value.message
    assert refusal.value.keys == (EFFICIENCY_KEY,)
    ((example, *_),) = refusal.value.remedies[0].values.values()
    assert parse_points(example)


@pytest.mark.parametrize("text", ["", "  ", ",", " , "])
def test_an_empty_list_of_points_is_refused(text):
    with pytest.raises(UsageError, match=r"rampup.efficiency is empty"):
        parse_points(text)


def test_more_points_than_a_surface_can_have_are_refused():
    points = {(1 + index, 1 + index): 1.0 for index in range(MOST_SURFACE_POINTS)}
    assert rate(parse_points(efficiency_text(points)), *max(points)) == 1.0
    with pytest.raises(UsageError, match=f"the limit is {MOST_SURFACE_POINTS}"):
        parse_points(efficiency_text(points | {(1, 2): 1.0}))


@pytest.mark.parametrize(
    ("text", "sizes"), [("1:9000 4:11500", [2, 2]), ("1x1:9000 8x1:14000", [1, 8])]
)
def test_rates_are_accepted_for_the_sizes_that_they_are_for(text, sizes):
    check_curve(text, sizes)


def test_rates_without_a_micro_batch_size_are_refused_for_several_sizes():
    with pytest.raises(UsageError, match="for one micro batch size, and there are 1 and 8"):
        check_curve("1:9000 4:11500", [8, 1, 8])


@given(
    nodes=st.integers(1, 8),
    accumulate=st.integers(1, 8),
    micro=MICRO,
    samples=st.integers(1, 10**9),
)
def test_the_seconds_of_a_stage_are_its_samples_over_the_rate_of_its_micro_batches(
    nodes, accumulate, micro, samples
):
    fleet = fleet_of(8, 4, tensor=2)
    points = {(1, 1): 900.0, (1, 8): 1200.0, (4, 1): 1500.0}
    clock = replace(EVEN, throughput=Throughput(points=points, basis="a test"))
    work = Work(global_batch_size=micro * nodes * 2 * accumulate, samples=samples)
    rate = nodes * 4 * clock.throughput.tokens_per_s_per_gpu(accumulate, micro_batch_size=micro)
    assert clock.stage_s(work, nodes, micro_batch_size=micro, fleet=fleet) == pytest.approx(
        samples * 100 / rate
    )
    endless = replace(work, samples=None)
    assert clock.stage_s(endless, nodes, micro_batch_size=micro, fleet=fleet) == pytest.approx(
        100 / rate
    )


def test_a_stage_takes_longer_by_the_bubble_unless_its_throughput_contains_it():
    fleet = fleet_of(1, 8, pipeline=4, pipeline_microbatches=4)
    work = Work(global_batch_size=16, samples=1600)

    def seconds(fleet, **facts):
        clock = replace(EVEN, throughput=Throughput.constant(1000.0, basis="a test", **facts))
        return clock.stage_s(work, 1, micro_batch_size=4, fleet=fleet)

    busy_s = 1600 * 100 / (8 * 1000)
    assert seconds(fleet) == busy_s
    assert seconds(fleet, has_bubble=False) == pytest.approx(busy_s * (8 + 3) / 8)
