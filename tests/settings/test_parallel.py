"""Sizes that must divide over ranks, and remedies, which must divide too."""

import copy
from math import gcd, lcm

import pytest
from hypothesis import assume, example, given
from hypothesis import settings as run
from hypothesis import strategies as st

from rampcli import llm
from rampcli.batch.training_plan import StagePlan
from rampcli.config.compose import apply_overrides
from rampcli.config.values import put
from rampcli.errors import ErrorReport, UsageError, UsageErrors
from rampcli.planning.resolve import resolve
from rampcli.planning.stage_checks import check_stages
from rampcli.settings.by_key import settings
from rampcli.settings.config import Config
from rampcli.settings.data import lacks_path
from rampcli.settings.parallel import check_pipeline_parts, check_sequence, check_tensor
from remedies import offers

WIDTHS = ("num_attention_heads", "num_query_groups", "ffn_hidden_size", "vocab_size", "hidden_size")
"""Sizes of a model that must divide over tensor ranks."""
AXES = (check_tensor, check_sequence, check_pipeline_parts)
PHASE = resolve(llm.from_factory("llama3_tiny")).plan.phases[0]
RANKS = st.sampled_from([1, 2, 3, 4, 6, 8])


def refusals(check, *about):
    """Returns all errors of a check."""
    report = ErrorReport()
    with report.noting():
        report.errors += check(*about) or ()
    return report.errors


def check_offers(check, config, *about):
    """Checks that each offer alone resolves its refusal and causes no other."""
    refused = refusals(check, config, *about)
    for refusal in refused:
        others = {error.message for error in refused} - {refusal.message}
        for offer in offers(refusal):
            assert not refusal.keys or {*offer} & {*refusal.keys}
            changed = copy.deepcopy(config)
            for key, value in offer.items():
                put(changed, key, value)
            assert changed != config
            assert {error.message for error in refusals(check, changed, *about)} <= others
    return refused


@st.composite
def configs(draw):
    """Draws splits and sizes, some of which fit."""
    config = Config()
    for name in WIDTHS:
        setattr(config.model, name, draw(st.integers(1, 4)) * draw(RANKS))
    config.model.num_query_groups = draw(st.none() | st.just(config.model.num_query_groups))
    config.model.num_layers = draw(st.integers(1, 24))
    config.data.sequence_length = draw(st.integers(1, 100))
    config.trainer.num_nodes, config.trainer.devices = draw(st.integers(1, 4)), draw(RANKS)
    config.trainer.accumulate_reduce = draw(
        st.sampled_from(settings()["trainer.accumulate_reduce"].choices)
    )
    parallel = config.parallel
    (
        parallel.tensor_parallel_size,
        parallel.pipeline_parallel_size,
        parallel.context_parallel_size,
    ) = draw(RANKS), draw(RANKS), draw(RANKS)
    parallel.virtual_pipeline_parallel_size = draw(st.integers(1, 4))
    parallel.data_parallel_shard_size = draw(st.none() | st.integers(1, 12))
    parallel.num_pipeline_microbatches = draw(st.none() | st.integers(1, 12))
    return config


@st.composite
def stages(draw):
    """Draws the stages of a ramp, with different data-parallel ranks and micro batches."""
    micro = draw(st.integers(1, 24))
    return [
        stage_of(
            number, ranks=draw(st.integers(1, 24)), micro=micro, passes=draw(st.integers(1, 12))
        )
        for number in draw(st.just((0, 1)))
    ]


def stage_of(number=0, *, ranks=1, micro=1, passes=1):
    return StagePlan(
        stage=number,
        global_batch_size=ranks * micro * passes,
        first_sample=0,
        samples=None,
        first_step=0,
        steps=None,
        num_nodes=1,
        world_size=ranks,
        data_parallel_size=ranks,
        micro_batch_size=micro,
        accumulate_grad_batches=passes,
    )


def split(**sizes):
    config = Config()
    for name, size in sizes.items():
        setattr(config.parallel, name, size)
    return config


@pytest.mark.parametrize("name", llm.recipe_names())
def test_every_recipe_passes_the_split_checks(name):
    config = llm.from_factory(name)
    config.data.path = "my.txt" if lacks_path(config) else None
    assert resolve(config).plan.stages


def test_a_model_of_any_size_passes_if_it_is_not_split():
    config = Config()
    for name in (*WIDTHS, "num_layers"):
        setattr(config.model, name, 7)
    config.data.sequence_length = 7
    config.trainer.accumulate_reduce = "each"
    assert [error for check in AXES for error in check(config)] == []
    check_stages(config, [stage_of(ranks=7, micro=7, passes=7)], PHASE)


@given(config=configs())
def test_heads_groups_widths_and_vocabulary_must_divide_over_the_tensor_ranks(config):
    sizes = {f"model.{name}": getattr(config.model, name) for name in WIDTHS}
    ranks = config.parallel.tensor_parallel_size
    wrong = [key for key, size in sizes.items() if size is not None and size % ranks]
    refused = check_offers(check_tensor, config)
    assert [error.keys for error in refused] == (
        [("parallel.tensor_parallel_size", *wrong)] if wrong else []
    )
    assert all(f"{key}={sizes[key]}" in error.message for error in refused for key in wrong)


@given(config=configs())
def test_the_suggested_tensor_ranks_are_the_most_that_divide_the_model_and_the_processes(
    config,
):
    refused = refusals(check_tensor, config)
    assume(refused)
    [offered] = offers(refused[0])
    sizes = [size for name in WIDTHS if (size := getattr(config.model, name))]
    processes = config.trainer.num_nodes * config.trainer.devices
    others = config.parallel.pipeline_parallel_size * config.parallel.context_parallel_size
    common = gcd(processes if processes % others else processes // others, *sizes)
    most = max(
        ranks for ranks in range(1, config.parallel.tensor_parallel_size) if common % ranks == 0
    )
    assert offered == {"parallel.tensor_parallel_size": most}


def test_query_groups_that_are_not_set_are_not_named():
    config = split(tensor_parallel_size=3)
    assert config.model.num_query_groups is None
    [refusal] = refusals(check_tensor, config)
    assert "num_query_groups" not in refusal.message
    assert refusal.message.startswith(
        "model.num_attention_heads=4, model.ffn_hidden_size=344, model.vocab_size=256 and"
        " model.hidden_size=128"
    )


@given(config=configs())
@example(config=split(context_parallel_size=128))
def test_a_sequence_must_divide_into_two_pieces_per_context_rank_and_these_over_tensor_ranks(
    config,
):
    context, tensor, length = (
        config.parallel.context_parallel_size,
        config.parallel.tensor_parallel_size,
        config.data.sequence_length,
    )
    pieces = (2 * context if context > 1 else 1) * tensor
    refused = check_offers(check_sequence, config)
    assert len(refused) == (length % pieces > 0)
    for refusal in refused:
        assert all(0 < offer["data.sequence_length"] < length + pieces for offer in offers(refusal))
        assert ("parallel.context_parallel_size" in refusal.keys) == (context > 1)
        assert ("parallel.tensor_parallel_size" in refusal.keys) == (tensor > 1)


@given(config=configs())
def test_layers_must_divide_over_virtual_stages_which_require_a_pipeline(config):
    config.trainer.accumulate_reduce = "last"
    ranks, parts, layers = (
        config.parallel.pipeline_parallel_size,
        config.parallel.virtual_pipeline_parallel_size,
        config.model.num_layers,
    )
    assume(layers % ranks == 0)  # `check_pipeline` refuses others
    refused = check_offers(check_pipeline_parts, config)
    if ranks == 1:
        assert ["needs a pipeline" in error.message for error in refused] == [True] * (parts > 1)
    else:
        assert [error.keys[0] for error in refused] == [
            "parallel.virtual_pipeline_parallel_size"
        ] * (layers % (ranks * parts) > 0)


@given(config=configs())
def test_a_pipeline_must_reduce_gradients_once_a_step(config):
    keys = [error.keys[0] for error in check_offers(check_pipeline_parts, config)]
    each = config.trainer.accumulate_reduce == "each"
    assert ("trainer.accumulate_reduce" in keys) == (
        each and config.parallel.pipeline_parallel_size > 1
    )


@given(config=configs(), stages=stages())
@example(
    config=split(data_parallel_shard_size=4), stages=[stage_of(0, ranks=4), stage_of(1, ranks=6)]
)
def test_the_shard_size_must_divide_the_data_parallel_ranks_of_every_stage(config, stages):
    config.parallel.num_pipeline_microbatches, config.parallel.virtual_pipeline_parallel_size = (
        None,
        1,
    )
    shard = config.parallel.data_parallel_shard_size
    wrong = [stage for stage in stages if shard is not None and stage.data_parallel_size % shard]
    refused = check_offers(check_stages, config, stages, PHASE)
    assert [error.message.split(":")[0] for error in refused] == [
        f"stage {stage.stage}" for stage in wrong[:1]
    ]
    assert all({error.keys[0]: None} in offers(error) for error in refused)


@given(config=configs(), stages=stages())
@example(
    config=split(pipeline_parallel_size=2, num_pipeline_microbatches=8), stages=[stage_of(micro=12)]
)
@example(
    config=split(pipeline_parallel_size=2, num_pipeline_microbatches=8), stages=[stage_of(micro=9)]
)
def test_microbatches_must_divide_a_micro_batch_and_suggestions_are_rounds_of_the_pipeline(
    config, stages
):
    config.parallel.data_parallel_shard_size, config.parallel.virtual_pipeline_parallel_size = (
        None,
        1,
    )
    ranks, pieces, micro = (
        config.parallel.pipeline_parallel_size,
        config.parallel.num_pipeline_microbatches,
        stages[0].micro_batch_size,
    )
    refused = check_offers(check_stages, config, stages, PHASE)
    goes_round = (
        pieces is not None and ranks > 1 and pieces % ranks == 0
    )  # `check_pipeline` refuses others
    assert len(refused) == (goes_round and micro % pieces > 0)
    for refusal in refused:
        [offered] = (offer["parallel.num_pipeline_microbatches"] for offer in offers(refusal))
        assert (offered is None) == (micro % ranks > 0)
        assert offered is None or (micro % offered, offered % ranks) == (0, 0)


@given(config=configs(), stages=stages())
@example(
    config=split(pipeline_parallel_size=4, virtual_pipeline_parallel_size=2),
    stages=[stage_of(0, passes=8), stage_of(1, passes=6)],
)
def test_an_interleaved_pipeline_requires_whole_rounds_of_micro_batches_in_every_stage(
    config, stages
):
    config.parallel.data_parallel_shard_size = None
    ranks, pieces = (
        config.parallel.pipeline_parallel_size,
        config.parallel.num_pipeline_microbatches or 1,
    )
    wrong = [stage for stage in stages if stage.accumulate_grad_batches * pieces % ranks]
    refused = [
        error
        for error in check_offers(check_stages, config, stages, PHASE)
        if "interleaved" in error.message
    ]
    expected = wrong[:1] if config.parallel.virtual_pipeline_parallel_size > 1 else []
    assert [error.message.split(":")[0] for error in refused] == [
        f"stage {stage.stage}" for stage in expected
    ]


@run(max_examples=30)
@given(
    ranks=RANKS,
    parts=st.integers(1, 3),
    pieces=st.none() | st.integers(1, 3),
    per_rank=st.integers(1, 2),
    passes=st.integers(1, 2),
)
def test_a_split_that_divides_is_never_refused(ranks, parts, pieces, per_rank, passes):
    config = Config()
    parallel, model = config.parallel, config.model
    (
        parallel.pipeline_parallel_size,
        parallel.tensor_parallel_size,
        parallel.context_parallel_size,
    ) = ranks, 2, 2
    parallel.data_parallel_shard_size = per_rank
    config.trainer.devices, config.trainer.num_nodes = 4 * ranks, 2 * per_rank
    model.num_layers = ranks * parts * per_rank
    parallel.virtual_pipeline_parallel_size = parts if ranks > 1 else 1
    parallel.num_pipeline_microbatches = None if pieces is None or ranks == 1 else ranks * pieces
    config.data.micro_batch_size = lcm(ranks, parallel.num_pipeline_microbatches or 1)
    config.trainer.accumulate_grad_batches = ranks * passes
    model.global_batch_size = (
        config.data.micro_batch_size * config.trainer.accumulate_grad_batches * 2 * per_rank
    )
    config.trainer.max_steps = 10
    [stage] = resolve(config).plan.stages
    assert stage.data_parallel_size == 2 * per_rank


def test_one_report_names_everything_that_does_not_divide_and_who_set_it():
    words = [
        "data.sequence_length=8190",
        "parallel.virtual_pipeline_parallel_size=2",
        "parallel.data_parallel_shard_size=3",
    ]
    with pytest.raises(UsageErrors) as refused:
        resolve(apply_overrides(llm.from_factory("llama3_8b"), words))
    assert [f"{word} (command line)" for word in words] == [
        error.set_by[0] for error in refused.value.errors
    ]


@pytest.mark.parametrize("pieces", [3, 5])
@pytest.mark.parametrize("ranks", [1, 2])
def test_microbatches_that_do_not_suit_the_pipeline_are_refused_once(ranks, pieces):
    words = [
        f"parallel.pipeline_parallel_size={ranks}",
        f"parallel.num_pipeline_microbatches={pieces}",
    ]
    with pytest.raises(UsageError) as refused:
        resolve(apply_overrides(llm.from_factory("gpt3_5b"), words))
    assert not isinstance(refused.value, UsageErrors)
    assert refused.value.keys == (
        "parallel.num_pipeline_microbatches",
        "parallel.pipeline_parallel_size",
    )


def test_a_finished_stage_does_not_have_to_divide():
    words = [
        "data=mock",
        "model.rampup_batch_size=[4,4,400]",
        "model.global_batch_size=8",
        "data.micro_batch_size=1",
    ]
    words += [
        "trainer.num_nodes=8",
        "trainer.max_samples=1000",
        "parallel.data_parallel_shard_size=8",
    ]
    config = apply_overrides(llm.from_factory("llama3_tiny"), words).config()
    with pytest.raises(UsageError) as refused:
        resolve(config)
    assert refused.value.keys[0] == "parallel.data_parallel_shard_size"
    assert [
        stage.num_nodes for stage in resolve(config, consumed_samples_in=lambda _: 400).plan.stages
    ] == [4, 8]
