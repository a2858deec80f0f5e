import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.division import nearest_multiples
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY, MICRO_KEY, BatchPlan, ParallelSizes
from rampcli.errors import UsageError
from remedies import offers

SIZE = st.integers(1, 24)
GLOBAL = st.integers(1, 400)


def divides(global_batch_size, micro_batch_size, data_parallel_size):
    try:
        BatchPlan.divide(
            global_batch_size,
            micro_batch_size=micro_batch_size,
            data_parallel_size=data_parallel_size,
        )
    except UsageError:
        return False
    return True


@given(global_batch_size=GLOBAL, micro=SIZE, ranks=SIZE)
def test_a_global_batch_is_split_without_remainder_or_refused(global_batch_size, micro, ranks):
    if global_batch_size % (micro * ranks):
        with pytest.raises(UsageError):
            BatchPlan.divide(global_batch_size, micro_batch_size=micro, data_parallel_size=ranks)
    else:
        plan = BatchPlan.divide(global_batch_size, micro_batch_size=micro, data_parallel_size=ranks)
        assert (plan.global_batch_size, plan.micro_batch_size, plan.data_parallel_size) == (
            global_batch_size,
            micro,
            ranks,
        )
        assert (
            plan.micro_batch_size * plan.data_parallel_size * plan.accumulate_grad_batches
            == global_batch_size
        )


@given(global_batch_size=GLOBAL, micro=SIZE, ranks=SIZE)
def test_a_refusal_offers_the_nearest_sizes_that_divide(global_batch_size, micro, ranks):
    if divides(global_batch_size, micro, ranks):
        return
    with pytest.raises(UsageError) as refusal:
        BatchPlan.divide(global_batch_size, micro_batch_size=micro, data_parallel_size=ranks)
    globals_offered, _, micro_offered = refusal.value.remedy.partition(", or ")
    smaller = [size for size in range(1, global_batch_size) if divides(size, micro, ranks)]
    larger = next(
        size
        for size in range(global_batch_size + 1, global_batch_size + micro * ranks + 1)
        if divides(size, micro, ranks)
    )
    nearest = [*smaller[-1:], larger]
    assert globals_offered == f"model.global_batch_size={' or '.join(map(str, nearest))}"
    micros = [size for size in range(1, micro) if divides(global_batch_size, size, ranks)]
    assert micro_offered == (f"data.micro_batch_size={micros[-1]}" if micros else "")


def test_a_refusal_shows_the_whole_product():
    with pytest.raises(UsageError) as refusal:
        BatchPlan.divide(100, micro_batch_size=5, data_parallel_size=8)
    assert refusal.value.message == (
        "model.global_batch_size=100 does not divide into data.micro_batch_size=5"
        " x 8 data-parallel ranks = 40"
    )
    assert refusal.value.remedy == "model.global_batch_size=80 or 120"
    assert refusal.value.keys == (
        "model.global_batch_size",
        "data.micro_batch_size",
        "trainer.num_nodes",
        "trainer.devices",
    )


def test_sizes_too_large_for_floats_stay_exact():
    large = 2**80 + 1
    assert (
        BatchPlan.divide(
            3 * large, micro_batch_size=3, data_parallel_size=1
        ).accumulate_grad_batches
        == large
    )
    with pytest.raises(UsageError, match=str(3 * large + 1)):
        BatchPlan.divide(3 * large + 1, micro_batch_size=3, data_parallel_size=1)


@given(micro=SIZE, ranks=SIZE, accumulate=SIZE)
def test_any_consistent_subset_determines_the_same_plan(micro, ranks, accumulate):
    whole = BatchPlan(
        global_batch_size=micro * ranks * accumulate,
        micro_batch_size=micro,
        data_parallel_size=ranks,
        accumulate_grad_batches=accumulate,
    )
    full = whole.global_batch_size
    for subset in (
        (full, micro, accumulate),
        (full, micro, None),
        (full, None, accumulate),
        (None, micro, accumulate),
    ):
        solved = BatchPlan.solve(
            global_batch_size=subset[0],
            micro_batch_size=subset[1],
            accumulate_grad_batches=subset[2],
            data_parallel_size=ranks,
        )
        assert solved == whole


@given(micro=SIZE, ranks=SIZE)
def test_a_micro_batch_alone_means_no_accumulation(micro, ranks):
    plan = BatchPlan.solve(
        global_batch_size=None,
        micro_batch_size=micro,
        accumulate_grad_batches=None,
        data_parallel_size=ranks,
    )
    assert (plan.global_batch_size, plan.accumulate_grad_batches) == (micro * ranks, 1)


@pytest.mark.parametrize(("global_batch_size", "accumulate"), [(None, None), (64, None), (None, 4)])
def test_a_micro_batch_that_cannot_be_derived_is_required(global_batch_size, accumulate):
    with pytest.raises(UsageError) as refusal:
        BatchPlan.solve(
            global_batch_size=global_batch_size,
            micro_batch_size=None,
            accumulate_grad_batches=accumulate,
            data_parallel_size=2,
        )
    assert refusal.value.message == "data.micro_batch_size is not set"
    assert refusal.value.keys == ("data.micro_batch_size",)


@given(global_batch_size=GLOBAL, ranks=SIZE, accumulate=SIZE)
def test_a_micro_batch_is_derived_exactly_or_the_nearest_global_sizes_are_suggested(
    global_batch_size, ranks, accumulate
):
    def solve(whole):
        return BatchPlan.solve(
            global_batch_size=whole,
            micro_batch_size=None,
            accumulate_grad_batches=accumulate,
            data_parallel_size=ranks,
        )

    if global_batch_size % (ranks * accumulate) == 0:
        assert solve(global_batch_size).micro_batch_size == global_batch_size // (
            ranks * accumulate
        )
        return
    with pytest.raises(UsageError) as refusal:
        solve(global_batch_size)
    offered = [offer[GLOBAL_KEY] for offer in offers(refusal.value)]
    assert offered == nearest_multiples(global_batch_size, ranks * accumulate)
    assert all(solve(size).global_batch_size == size for size in offered)


@given(micro=SIZE, ranks=SIZE, accumulate=SIZE, asked=st.none() | SIZE)
def test_an_accumulation_is_the_requested_one_or_refused_with_each_size_that_works(
    micro, ranks, accumulate, asked
):
    whole = micro * ranks * accumulate
    sizes = {GLOBAL_KEY: whole, MICRO_KEY: micro, ACCUMULATE_KEY: asked}

    def solve(**changed):
        whole, micro, asked = (sizes | changed).values()
        return BatchPlan.solve(
            global_batch_size=whole,
            micro_batch_size=micro,
            accumulate_grad_batches=asked,
            data_parallel_size=ranks,
        )

    if asked in (None, accumulate):
        assert solve().accumulate_grad_batches == accumulate
        return
    with pytest.raises(UsageError) as refusal:
        solve()
    product = micro * ranks * asked
    assert refusal.value.message == (
        f"data.micro_batch_size={micro} x {ranks} data-parallel ranks"
        f" x trainer.accumulate_grad_batches={asked} = {product},"
        f" but model.global_batch_size={whole}"
    )
    smaller = [] if whole % (ranks * asked) else [{MICRO_KEY: whole // (ranks * asked)}]
    assert offers(refusal.value) == [{GLOBAL_KEY: product}, {ACCUMULATE_KEY: accumulate}, *smaller]
    assert all(solve(**offer) for offer in offers(refusal.value))


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize(
    ("argument", "key"),
    [
        ("global_batch_size", "model.global_batch_size"),
        ("micro_batch_size", "data.micro_batch_size"),
        ("accumulate_grad_batches", "trainer.accumulate_grad_batches"),
    ],
)
def test_a_size_below_one_is_refused_by_its_key(argument, key, size):
    given = {"global_batch_size": 8, "micro_batch_size": 2, "accumulate_grad_batches": 2} | {
        argument: size
    }
    with pytest.raises(UsageError) as refusal:
        BatchPlan.solve(**given, data_parallel_size=2)
    assert refusal.value.message == f"{key}={size} is less than one"
    assert refusal.value.keys == (key,)


@given(
    world=st.integers(1, 256),
    tensor=st.integers(1, 8),
    pipeline=st.integers(1, 4),
    context=st.integers(1, 4),
)
def test_all_ranks_outside_the_model_are_data_parallel(world, tensor, pipeline, context):
    parallel = ParallelSizes(tensor=tensor, pipeline=pipeline, context=context)
    if world % (tensor * pipeline * context) == 0:
        assert parallel.data_parallel_size(world) * tensor * pipeline * context == world
    else:
        with pytest.raises(
            UsageError, match=rf"= {tensor * pipeline * context} model-parallel ranks"
        ):
            parallel.data_parallel_size(world)
