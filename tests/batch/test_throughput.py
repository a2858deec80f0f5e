import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.throughput import Throughput, parse_points, to_text
from rampcli.errors import UsageError

COUNTS = st.integers(1, 200)
RATES = st.floats(1, 1e6)
POINTS = st.dictionaries(COUNTS, RATES, min_size=1, max_size=6).map(
    lambda points: tuple(sorted(points.items()))
)


def throughput(points):
    return Throughput(points=points, basis="a test")


@given(points=POINTS)
def test_the_rate_at_a_point_is_the_given_one(points):
    assert [throughput(points).tokens_per_s_per_gpu(count) for count, _ in points] == [
        rate for _, rate in points
    ]


@given(points=POINTS, beyond=st.integers(0, 1000))
def test_the_rate_is_constant_before_the_first_point_and_after_the_last(points, beyond):
    measured = throughput(points)
    assert measured.tokens_per_s_per_gpu(points[-1][0] + beyond) == points[-1][1]
    assert measured.tokens_per_s_per_gpu(max(1, points[0][0] - beyond)) == points[0][1]


@given(left=RATES, right=RATES, first=COUNTS, gap=COUNTS, data=st.data())
def test_the_rate_between_two_points_is_interpolated_linearly(left, right, first, gap, data):
    step = data.draw(st.integers(0, gap))
    rate = throughput(((first, left), (first + gap, right))).tokens_per_s_per_gpu(first + step)
    assert rate * gap == pytest.approx(left * (gap - step) + right * step)


@given(points=POINTS, count=COUNTS)
def test_more_micro_batches_are_never_slower_if_the_points_rise(points, count):
    rising = throughput(
        tuple(zip((count for count, _ in points), sorted(rate for _, rate in points), strict=True))
    )
    assert rising.tokens_per_s_per_gpu(count + 1) >= rising.tokens_per_s_per_gpu(count) * (
        1 - 1e-12
    )


@given(
    points=POINTS,
    samples=st.integers(1, 10**12),
    length=st.integers(1, 8192),
    world=st.integers(1, 4096),
    count=COUNTS,
)
def test_seconds_multiplied_by_the_rate_give_the_tokens(points, samples, length, world, count):
    measured = throughput(points)
    seconds = measured.seconds(
        samples, sequence_length=length, world_size=world, micro_batches=count
    )
    assert seconds * world * measured.tokens_per_s_per_gpu(count) == pytest.approx(samples * length)


@given(
    points=POINTS,
    samples=st.integers(1, 10**9),
    more=st.integers(1, 10**9),
    world=st.integers(1, 64),
    count=COUNTS,
)
def test_more_samples_take_longer_and_more_gpus_take_less_time(points, samples, more, world, count):
    def seconds(samples, world):
        return throughput(points).seconds(
            samples, sequence_length=128, world_size=world, micro_batches=count
        )

    assert seconds(samples + more, world) > seconds(samples, world) > seconds(samples, world + 1)


@given(
    points=POINTS,
    separator=st.sampled_from([" ", ",", ", ", "  "]),
    shuffle=st.randoms(use_true_random=False),
)
def test_points_are_read_in_any_order_between_blanks_or_commas(points, separator, shuffle):
    words = [f"{count}:{rate!r}" for count, rate in points]
    shuffle.shuffle(words)
    assert parse_points(separator.join(words)) == points


def test_numbers_of_points_may_have_units():
    assert parse_points("1:9K 4:11.5K 1K:0.012M") == ((1, 9000.0), (4, 11500.0), (1000, 12000.0))
    assert parse_points("1:0.25 2:1e3") == ((1, 0.25), (2, 1000.0))


@given(
    points=st.dictionaries(COUNTS, st.integers(1, 999_999), min_size=1).map(
        lambda points: tuple(sorted(points.items()))
    )
)
def test_points_written_as_text_are_read_back_unchanged(points):
    assert parse_points(to_text(points)) == points


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
    ],
)
def test_an_invalid_or_repeated_entry_is_refused_by_name(text, word):
    with pytest.raises(UsageError) as refusal:
        parse_points(text)
    assert (
        f"rampup.efficiency={text!r}: {word!r} is not MICRO_BATCHES:TOKENS_PER_SECOND"
        in refusal.value.message
    )
    assert refusal.value.keys == ("rampup.efficiency",)
    assert parse_points(refusal.value.remedy.removeprefix("rampup.efficiency=").strip("'"))


@pytest.mark.parametrize("text", ["", "  ", ",", " , "])
def test_an_empty_list_of_points_is_refused(text):
    with pytest.raises(UsageError, match=r"rampup.efficiency is empty"):
        parse_points(text)
