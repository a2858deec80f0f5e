import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.errors import UsageError, UsageErrors
from rampcli.words.maxtext import WORDS
from rampcli.words.spellings import SPELLINGS, Given, check_same, fold_spellings

UNUSED = {key: Given(value=None, layer=0) for key in (*SPELLINGS, *SPELLINGS.values())}
TENSOR = "parallel.tensor_parallel_size"
TENSOR_SPELLINGS = (
    "model.tensor_model_parallel_size",
    "trainer.strategy.tensor_model_parallel_size",
)
USES = st.builds(Given, value=st.none() | st.integers(1, 3), layer=st.integers(1, 3))


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("data.global_batch_size", "model.global_batch_size"),
        ("data.rampup_batch_size", "model.rampup_batch_size"),
        ("model.micro_batch_size", "data.micro_batch_size"),
        ("model.tensor_model_parallel_size", "parallel.tensor_parallel_size"),
        ("model.pipeline_model_parallel_size", "parallel.pipeline_parallel_size"),
        ("model.context_parallel_size", "parallel.context_parallel_size"),
        ("trainer.strategy.tensor_model_parallel_size", "parallel.tensor_parallel_size"),
        ("trainer.strategy.pipeline_model_parallel_size", "parallel.pipeline_parallel_size"),
        ("trainer.strategy.context_parallel_size", "parallel.context_parallel_size"),
        ("gradient_accumulation_steps", "trainer.accumulate_grad_batches"),
        ("expansion_factor_real_data", "data.expansion_factor_real_data"),
        ("num_pipeline_microbatches", "parallel.num_pipeline_microbatches"),
    ],
)
def test_a_spelling_sets_its_canonical_key(spelling, canonical):
    assert fold_spellings(UNUSED | {spelling: Given(value=4, layer=3)}) == {canonical: spelling}


def test_unused_spellings_set_nothing():
    assert fold_spellings(UNUSED | {TENSOR: Given(value=4, layer=0)}) == {}


def test_a_spelling_is_never_itself_a_canonical_key():
    assert not set(SPELLINGS) & set(SPELLINGS.values())


def test_words_that_count_per_device_are_not_spellings():
    assert not set(SPELLINGS) & set(WORDS)


@given(
    canonical=st.builds(Given, value=st.integers(1, 3), layer=st.integers(0, 3)),
    first=USES,
    second=USES,
)
def test_the_value_set_nearest_to_the_user_wins(canonical, first, second):
    given = {TENSOR: canonical, TENSOR_SPELLINGS[0]: first, TENSOR_SPELLINGS[1]: second}
    nearest = max(entry.layer for entry in given.values() if entry.value is not None)
    values = {
        entry.value
        for entry in given.values()
        if entry.value is not None and entry.layer == nearest
    }
    if len(values) > 1:
        with pytest.raises(UsageError, match="two spellings of one setting and differ"):
            fold_spellings(UNUSED | given)
    else:
        winner = fold_spellings(UNUSED | given).get(TENSOR, TENSOR)
        assert {given[winner].value} == values


def test_different_spellings_of_equal_rank_are_both_named():
    given = {
        "data.global_batch_size": Given(value=64, layer=3),
        "model.global_batch_size": Given(value=32, layer=3),
    }
    with pytest.raises(UsageError) as refusal:
        fold_spellings(UNUSED | given)
    assert (
        refusal.value.message == "data.global_batch_size=64 and model.global_batch_size=32"
        " are two spellings of one setting and differ"
    )
    assert refusal.value.keys == ("data.global_batch_size", "model.global_batch_size")


def test_two_spellings_with_equal_values_are_accepted():
    given = {spelling: Given(value=2, layer=3) for spelling in TENSOR_SPELLINGS}
    assert given[fold_spellings(UNUSED | given)[TENSOR]].value == 2


def test_every_number_whose_spellings_differ_is_named_at_once():
    given = {
        "data.global_batch_size": Given(value=64, layer=3),
        "model.global_batch_size": Given(value=32, layer=3),
        TENSOR_SPELLINGS[0]: Given(value=2, layer=2),
        TENSOR_SPELLINGS[1]: Given(value=4, layer=2),
    }
    with pytest.raises(UsageErrors) as refusal:
        fold_spellings(UNUSED | given)
    assert [error.keys for error in refusal.value.errors] == [
        ("data.global_batch_size", "model.global_batch_size"),
        (TENSOR_SPELLINGS[1], TENSOR_SPELLINGS[0]),
    ]


@given(spellings=st.dictionaries(st.sampled_from(sorted(SPELLINGS)), st.integers(1, 9), max_size=6))
def test_a_key_is_set_only_by_a_used_spelling_of_its_own(
    spellings,
):
    used = {
        key: Given(value=10 * list(SPELLINGS.values()).index(SPELLINGS[key]), layer=2)
        for key in spellings
    }
    folded = fold_spellings(UNUSED | used)
    assert set(folded) == {SPELLINGS[key] for key in used}
    assert all(SPELLINGS[word] == canonical and word in used for canonical, word in folded.items())


@given(value=st.integers(0, 2), other=st.integers(0, 2))
def test_two_different_values_of_one_number_are_both_shown(value, other):
    if value == other:
        check_same("one", value, "other", other)
        return
    with pytest.raises(UsageError) as refusal:
        check_same("one", value, "other", other)
    assert (
        refusal.value.message
        == f"one={value} and other={other} are two spellings of one setting and differ"
    )
    assert (refusal.value.keys, refusal.value.remedy) == (("one", "other"), "one of them")
