from typing import get_origin

import pytest
from hypothesis import example, given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli.config.layers import build_config
from rampcli.config.values import put
from rampcli.settings.by_key import settings
from rampcli.settings.checks import CHECKS, check_name, check_paths, check_ranges
from rampcli.settings.config import Config
from rampcli.settings.model import check_heads, check_rotary
from rampcli.settings.optim import check_learning_rate

BOUNDED = [
    setting
    for setting in settings().values()
    if setting.range_name() and get_origin(setting.type) is not list
]
"""Settings with a range. The items of a list are checked where its length is known."""


def config_of(**values) -> Config:
    return build_config(
        {key.replace("__", "."): value for key, value in values.items()}, place="here"
    )


def refusal_or_none(check, config):
    return next(check(config), None)


def test_the_defaults_pass_every_check():
    assert [error for check in CHECKS for error in check(Config())] == []


PATHS = ("data.path", "data.validation_path", "data.tokenizer", "model.init_from", "run_dir")


@pytest.mark.parametrize("url", ["gs://bucket/wiki", "s3://b/w", "file:///wiki", "HDFS+x.1://a"])
@pytest.mark.parametrize("key", PATHS)
def test_a_url_is_refused_in_place_of_a_path_and_a_folder_is_suggested(key, url):
    refusal = refusal_or_none(check_paths, build_config({key: url}, place="here"))
    assert refusal.keys == (key,)
    suggested = refusal.remedy.rpartition(" ")[2]
    assert suggested.startswith(f"{key}=/")
    folder = suggested.partition("=")[2]
    assert refusal_or_none(check_paths, build_config({key: folder}, place="here")) is None


def test_every_url_of_a_blend_is_refused():
    config = config_of(data__blend=["0.5", "gs://b/wiki", "0.3", "code", "0.2", "s3://b/x"])
    refused = [error.message.split()[1] for error in check_paths(config)]
    assert refused == ["gs://b/wiki", "s3://b/x"]


@pytest.mark.parametrize(
    "path", ["data/wiki", "/a:b/c", "C:/wiki", "~/gs", "gs:/x", "://x", "1://x"]
)
def test_a_path_that_only_resembles_a_url_is_accepted(path):
    assert refusal_or_none(check_paths, config_of(data__path=path)) is None


def as_typed(setting, number):
    return int(number) if setting.type is int else float(number)


@pytest.mark.parametrize("setting", BOUNDED, ids=lambda setting: setting.key)
def test_the_bounds_of_a_range_are_accepted_and_numbers_beyond_them_refused(setting):
    step = 1 if setting.type is int else 1e-6
    edges = []
    for name, inside, outside, reason in (
        ("at_least", 0, -step, "below {:g}"),
        ("above", step, 0, "not above {:g}"),
        ("at_most", 0, step, "above {}"),
    ):
        if (limit := getattr(setting, name)) is not None:
            numbers = (as_typed(setting, limit + one) for one in (inside, outside))
            edges.append((*numbers, reason.format(limit)))
    assert edges
    for inside, outside, reason in edges:
        assert (
            refusal_or_none(check_ranges, build_config({setting.key: inside}, place="here")) is None
        )
        refusal = refusal_or_none(check_ranges, build_config({setting.key: outside}, place="here"))
        assert refusal.keys == (setting.key,)
        assert reason in refusal.message


def test_every_number_out_of_range_is_reported():
    refused = check_ranges(config_of(seed=-1, trainer__num_nodes=0, optim__beta1=2.0))
    assert [error.keys for error in refused] == [
        ("seed",),
        ("trainer.num_nodes",),
        ("optim.beta1",),
    ]


@pytest.mark.parametrize(
    "name", ["run", "a b", "a-b_c.1", "Größe", "モデル", "🚀", "x" * 200, "...", "-x", "a:b"]
)
def test_a_name_that_is_a_valid_folder_name_is_accepted(name, tmp_path):
    assert refusal_or_none(check_name, Config(name=name)) is None
    (tmp_path / name).mkdir()


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/",
        "a\nb",
        "a\0b",
        "a\x1bb",
        "\u202ea",
        "x" * 201,
        "ü" * 101,
        "\ud800",
    ],
)
def test_a_name_that_is_not_a_valid_folder_name_is_refused(name):
    (refused,) = check_name(Config(name=name))
    assert refused.keys == ("name",)
    assert len(refused.message.splitlines()) == 1


@pytest.mark.parametrize("run_dir", ["", "a\0b"])
def test_a_run_directory_that_is_not_a_path_is_refused(run_dir):
    (refused,) = check_name(Config(run_dir=run_dir))
    assert refused.keys == ("run_dir",)


@run(max_examples=60)
@given(
    hidden=st.integers(1, 40),
    heads=st.integers(1, 12),
    groups=st.none() | st.integers(1, 12),
    rope=st.booleans(),
)
@example(hidden=40, heads=12, groups=None, rope=False)
@example(hidden=24, heads=12, groups=9, rope=False)
@example(hidden=12, heads=4, groups=None, rope=True)
def test_heads_must_divide_and_the_nearest_smaller_number_that_divides_is_suggested(
    hidden, heads, groups, rope
):
    config = Config()
    config.model.position_embedding = "rope" if rope else "learned"
    config.model.hidden_size, config.model.num_attention_heads, config.model.num_query_groups = (
        hidden,
        heads,
        groups,
    )
    refusal = refusal_or_none(check_heads, config)
    if hidden % heads:
        numbers = [number for number in range(1, heads) if hidden % number == 0]
        of_groups = [number for number in numbers if number % (groups or number) == 0]
        size = "" if heads % (groups or heads) else ", or model.head_size=64"
        assert refusal.remedy == f"model.num_attention_heads={max(of_groups or numbers)}{size}"
        config.model.head_size = 64
        refusal = refusal_or_none(check_heads, config)
        assert refusal is None or refusal.keys == (
            "model.num_attention_heads",
            "model.num_query_groups",
        )
    elif groups is not None and heads % groups:
        largest = max(number for number in range(1, groups) if heads % number == 0)
        assert refusal.remedy == f"model.num_query_groups={largest}"
    elif rope and hidden // heads % 2:
        assert "rotary positions need an even size" in refusal.message
    else:
        assert refusal is None


@pytest.mark.parametrize("head_size", [1, 2, 63, 64, 129])
@pytest.mark.parametrize("rope", [False, True])
def test_a_given_head_size_is_free_but_even_with_rotary_positions(head_size, rope):
    position = "rope" if rope else "learned"
    config = config_of(
        model__hidden_size=40,
        model__num_attention_heads=12,
        model__head_size=head_size,
        model__position_embedding=position,
    )
    refusal = refusal_or_none(check_heads, config)
    assert (refusal is None) == (not rope or head_size % 2 == 0)
    assert refusal is None or refusal.keys == ("model.head_size",)


@run(max_examples=60)
@given(
    factor=st.none() | st.floats(1, 64),
    low=st.floats(0.125, 8),
    high=st.floats(0.125, 8),
    position=st.sampled_from(settings()["model.position_embedding"].choices),
)
@example(factor=None, low=4.0, high=4.0, position="learned")
@example(factor=8.0, low=4.0, high=4.0, position="rope")
def test_rotary_scaling_requires_rotary_positions_and_a_frequency_band(factor, low, high, position):
    config = config_of(
        model__rotary_scale_factor=factor,
        model__rotary_low_freq_factor=low,
        model__rotary_high_freq_factor=high,
        model__position_embedding=position,
    )
    refusal = refusal_or_none(check_rotary, config)
    if factor is None:
        assert refusal is None
    elif position == "learned":
        assert refusal.keys == ("model.rotary_scale_factor", "model.position_embedding")
    elif low >= high:
        assert refusal.keys == ("model.rotary_low_freq_factor", "model.rotary_high_freq_factor")
    else:
        assert refusal is None
    for assignment in (refusal.remedy if refusal else "").split():
        key, value = assignment.split("=")
        put(config, key, None if value == "null" else float(value))
    assert refusal_or_none(check_rotary, config) is None


def test_one_warm_up_is_accepted_and_two_are_refused():
    for one in ({"optim__warmup_samples": 0}, {"optim__warmup_steps": 5}):
        assert refusal_or_none(check_learning_rate, config_of(**one)) is None
    refusal = refusal_or_none(
        check_learning_rate, config_of(optim__warmup_samples=8, optim__warmup_steps=0)
    )
    assert refusal.keys == ("optim.warmup_samples", "optim.warmup_steps")


def test_the_minimum_learning_rate_may_equal_the_peak_but_not_exceed_it():
    assert refusal_or_none(check_learning_rate, config_of(optim__lr=0.5, optim__min_lr=0.5)) is None
    refusal = refusal_or_none(check_learning_rate, config_of(optim__lr=0.5, optim__min_lr=0.6))
    assert (refusal.keys, refusal.remedy) == (("optim.min_lr", "optim.lr"), "optim.min_lr=0.5")


@pytest.mark.parametrize("warmup", [{}, {"optim__warmup_samples": 0}, {"optim__warmup_steps": 0}])
def test_an_inverse_square_root_decay_requires_a_warm_up(warmup):
    refusal = refusal_or_none(
        check_learning_rate, config_of(schedule__decay_style="inverse_sqrt", **warmup)
    )
    assert refusal.keys[0] == "schedule.decay_style"
    for one in ({"optim__warmup_steps": 1}, {"optim__warmup_samples": 1}):
        config = config_of(schedule__decay_style="inverse_sqrt", **one)
        assert refusal_or_none(check_learning_rate, config) is None


@pytest.mark.parametrize("style", settings()["schedule.decay_style"].choices)
def test_wsd_decay_samples_are_accepted_only_with_the_wsd_style(style):
    config = config_of(
        schedule__decay_style=style, schedule__wsd_decay_samples=5, optim__warmup_steps=1
    )
    refusal = refusal_or_none(check_learning_rate, config)
    assert (refusal is None) == (style == "wsd")
    assert refusal is None or refusal.keys == ("schedule.wsd_decay_samples", "schedule.decay_style")
