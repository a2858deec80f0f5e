import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.pipeline import bubble, check_pipeline
from rampcli.batch.plan import ParallelSizes
from rampcli.errors import UsageError
from remedies import offers

PIPELINE = "parallel.num_pipeline_microbatches"


@given(
    microbatches=st.integers(1, 24),
    stages=st.integers(2, 8),
    layers=st.integers(1, 32),
    open_=st.booleans(),
)
def test_layers_divide_over_stages_and_microbatches_fill_them_or_others_are_suggested(
    microbatches, stages, layers, open_
):
    def check(**changed):
        given = {
            "num_pipeline_microbatches": microbatches,
            "pipeline_size": stages,
            "num_layers": layers,
        }
        check_pipeline(**(given | ({"num_pipeline_microbatches": None} if open_ else {}) | changed))

    if layers % stages:
        with pytest.raises(UsageError) as refusal:
            check()
        assert refusal.value.keys == ("model.num_layers", "parallel.pipeline_parallel_size")
        [[fewer]] = [offer.values() for offer in offers(refusal.value)]
        assert layers % fewer == 0
        assert 1 <= fewer < stages
    elif open_:
        check()
    elif microbatches % stages:
        with pytest.raises(UsageError) as refusal:
            check()
        assert offers(refusal.value)
        for count in (offer[PIPELINE] for offer in offers(refusal.value)):
            check(num_pipeline_microbatches=count)
            assert abs(count - microbatches) < stages
    else:
        check()


def test_pipeline_microbatches_without_a_pipeline_are_refused():
    with pytest.raises(UsageError) as refusal:
        check_pipeline(num_pipeline_microbatches=4, pipeline_size=1, num_layers=8)
    assert offers(refusal.value) == [{PIPELINE: None}]
    check_pipeline(num_pipeline_microbatches=None, pipeline_size=1, num_layers=8)


def passing_time(ranks, micro_batches):
    """Returns when the last micro batch leaves the last of some ranks that take 1 for each."""
    left = [0] * ranks
    for _ in range(micro_batches):
        arrives = 0
        for rank in range(ranks):
            left[rank] = arrives = max(arrives, left[rank]) + 1
    return left[-1]


@given(ranks=st.integers(1, 8), accumulate=st.integers(1, 40), parts=st.integers(1, 4))
def test_the_bubble_is_the_time_that_micro_batches_take_to_pass_beyond_their_own(
    ranks, accumulate, parts
):
    parallel = ParallelSizes(pipeline=ranks, pipeline_microbatches=parts)
    share = bubble(parallel, accumulate_grad_batches=accumulate)
    time = passing_time(ranks, accumulate * parts)
    assert share == pytest.approx(1 - accumulate * parts / time)


@given(ranks=st.integers(2, 8), accumulate=st.integers(1, 40), groups=st.integers(1, 4))
def test_with_several_groups_of_layers_per_rank_the_idle_time_is_divided_by_them(
    ranks, accumulate, groups
):
    def idle(groups):
        parallel = ParallelSizes(pipeline=ranks, virtual_pipeline=groups)
        share = bubble(parallel, accumulate_grad_batches=accumulate)
        return accumulate * share / (1 - share)

    assert idle(groups) == pytest.approx(idle(1) / groups)
