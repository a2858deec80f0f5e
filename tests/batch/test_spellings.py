import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.batch.spellings import SPELLINGS, Given, fold_spellings
from rampcli.errors import UsageError

UNUSED = {key: Given(value=None, layer=0) for key in (*SPELLINGS, *SPELLINGS.values())}
TENSOR = "parallel.tensor_parallel_size"
TENSOR_SPELLINGS = ("model.tensor_model_parallel_size", "trainer.strategy.tensor_model_parallel_size")
USES = st.builds(Given, value=st.none() | st.integers(1, 3), layer=st.integers(1, 3))


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("data.global_batch_size", "model.global_batch_size"),
        ("model.micro_batch_size", "data.micro_batch_size"),
        ("model.tensor_model_parallel_size", "parallel.tensor_parallel_size"),
        ("model.pipeline_model_parallel_size", "parallel.pipeline_parallel_size"),
        ("model.context_parallel_size", "parallel.context_parallel_size"),
        ("trainer.strategy.tensor_model_parallel_size", "parallel.tensor_parallel_size"),
        ("trainer.strategy.pipeline_model_parallel_size", "parallel.pipeline_parallel_size"),
        ("trainer.strategy.context_parallel_size", "parallel.context_parallel_size"),
    ],
)
def test_a_spelling_speaks_for_its_canonical_key(spelling, canonical):
    assert fold_spellings(UNUSED | {spelling: Given(value=4, layer=3)}) == {canonical: spelling}


def test_spellings_that_are_not_used_speak_for_nothing():
    assert fold_spellings(UNUSED | {TENSOR: Given(value=4, layer=0)}) == {}


def test_a_spelling_is_never_itself_a_canonical_key():
    assert not set(SPELLINGS) & set(SPELLINGS.values())


@given(canonical=st.builds(Given, value=st.integers(1, 3), layer=st.integers(0, 3)), first=USES, second=USES)
def test_what_is_set_nearest_to_the_user_decides(canonical, first, second):
    given = {TENSOR: canonical, TENSOR_SPELLINGS[0]: first, TENSOR_SPELLINGS[1]: second}
    nearest = max(entry.layer for entry in given.values() if entry.value is not None)
    values = {entry.value for entry in given.values() if entry.value is not None and entry.layer == nearest}
    if len(values) > 1:
        with pytest.raises(UsageError, match="two spellings of one number and differ"):
            fold_spellings(UNUSED | given)
    else:
        winner = fold_spellings(UNUSED | given).get(TENSOR, TENSOR)
        assert {given[winner].value} == values


def test_two_spellings_set_equally_near_that_differ_are_both_named():
    given = {"data.global_batch_size": Given(value=64, layer=3), "model.global_batch_size": Given(value=32, layer=3)}
    with pytest.raises(UsageError) as refusal:
        fold_spellings(UNUSED | given)
    assert refusal.value.message == "data.global_batch_size=64 and model.global_batch_size=32 are two spellings of one number and differ"
    assert refusal.value.keys == ("data.global_batch_size", "model.global_batch_size")


def test_two_spellings_of_the_same_value_agree():
    given = {spelling: Given(value=2, layer=3) for spelling in TENSOR_SPELLINGS}
    assert given[fold_spellings(UNUSED | given)[TENSOR]].value == 2
