"""MaxText's words for the axes of parallelism become sizes in our settings."""

from math import prod

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rampcli.batch.plan import ParallelSizes
from rampcli.errors import UsageError
from rampcli.words.maxtext_mesh import AXES, KEYS, MODEL_AXES, SHARD_KEY, read_mesh
from remedies import offers

SIZES = st.sampled_from([1, 2, 3, 4])
WHOLE_MESHES = st.fixed_dictionaries(dict.fromkeys(AXES, SIZES))
"""A size for every word."""


def devices_of(mesh):
    return prod(mesh.values())


def meant(words, num_devices=64, **parallel):
    return read_mesh(words, num_devices=num_devices, parallel=ParallelSizes(**parallel))


def refusal_of(words, num_devices=64, **parallel):
    with pytest.raises(UsageError) as refusal:
        meant(words, num_devices, **parallel)
    return refusal.value


@given(mesh=WHOLE_MESHES)
def test_the_size_of_an_axis_is_the_product_of_its_two_words(mesh):
    sizes = {
        axis: mesh[f"ici_{axis}_parallelism"] * mesh[f"dcn_{axis}_parallelism"]
        for axis in AXES.values()
    }
    assert meant(mesh, devices_of(mesh)) == {
        key: sizes[axis] for axis, key in MODEL_AXES.items()
    } | {SHARD_KEY: sizes["fsdp"]}


@given(mesh=WHOLE_MESHES, word=st.sampled_from(sorted(AXES)))
def test_a_size_of_minus_one_takes_what_the_others_leave(mesh, word):
    filled = meant(mesh | {word: -1}, devices_of(mesh))
    whole = meant(mesh, devices_of(mesh))
    if (
        word == "ici_fsdp_parallelism"
        and devices_of({w: mesh[w] for w in mesh if "_data" in w}) == 1
    ):
        whole[SHARD_KEY] = None
    assert filled == whole


@given(mesh=WHOLE_MESHES, more=st.integers(2, 5))
def test_sizes_that_do_not_use_the_devices_exactly_are_refused(mesh, more):
    model = prod(size for name, size in mesh.items() if AXES[name] in MODEL_AXES)
    ranks = devices_of(mesh) * more // model
    refusal = refusal_of(mesh, devices_of(mesh) * more)
    assert f"but there are {ranks} data-parallel ranks" in refusal.message
    assert {"trainer.num_nodes", "trainer.devices"} < set(refusal.keys)
    [offer] = offers(refusal)
    assert meant(mesh | offer, devices_of(mesh) * more)


@given(words=st.dictionaries(st.sampled_from(sorted(AXES)), SIZES))
def test_only_the_axes_that_words_give_are_set(words):
    axes = {AXES[word] for word in words}
    assume(axes.isdisjoint({"fsdp", "data"}))
    assert set(meant(words)) == {KEYS[word] for word in words}


@pytest.mark.parametrize(
    ("words", "shard"),
    [
        ({"ici_fsdp_parallelism": -1}, None),
        ({"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}, None),
        ({"dcn_data_parallelism": -1}, None),
        ({"dcn_fsdp_parallelism": 2}, None),
        ({"ici_fsdp_parallelism": 64}, 64),
        ({"ici_fsdp_parallelism": 8}, 8),
        ({"dcn_data_parallelism": 16}, 4),
        ({"ici_data_parallelism": 4}, 16),
        ({"ici_fsdp_parallelism": -1, "dcn_data_parallelism": 4}, 16),
        ({"ici_fsdp_parallelism": 1, "ici_data_parallelism": -1}, 1),
        ({"ici_fsdp_parallelism": 2, "dcn_fsdp_parallelism": 4}, 8),
    ],
    ids=str,
)
def test_fsdp_is_the_ranks_that_share_the_weights_and_maxtexts_defaults_fill_the_rest(words, shard):
    assert meant(words) == {SHARD_KEY: shard}


def test_the_split_of_the_model_leaves_fewer_data_parallel_ranks():
    assert meant({"ici_fsdp_parallelism": -1, "dcn_data_parallelism": 2}, context=4) == {
        SHARD_KEY: 8
    }
    assert meant({"ici_tensor_parallelism": 8, "dcn_data_parallelism": 2}, context=2) == {
        "parallel.tensor_parallel_size": 8,
        SHARD_KEY: 2,
    }


def test_a_model_that_the_devices_do_not_divide_into_is_left_to_the_plan():
    assert meant({"ici_tensor_parallelism": 3}) == {"parallel.tensor_parallel_size": 3}
    assert meant({"ici_fsdp_parallelism": 2, "ici_tensor_parallelism": 128}) == {
        "parallel.tensor_parallel_size": 128,
        SHARD_KEY: 2,
    }
    assert meant({"ici_fsdp_parallelism": -1}, num_devices=0) == {SHARD_KEY: None}


@pytest.mark.parametrize(
    "words",
    [
        ["ici_fsdp_parallelism", "ici_data_parallelism"],
        ["dcn_pipeline_parallelism", "dcn_data_parallelism"],
        ["ici_tensor_parallelism", "dcn_data_parallelism"],
        ["dcn_pipeline_parallelism"],
    ],
    ids=" ".join,
)
def test_two_sizes_of_minus_one_are_refused_if_the_result_depends_on_the_number_of_slices(words):
    refusal = refusal_of(dict.fromkeys(words, -1))
    assert [word for word in words if f"{word}=-1" not in refusal.message] == []
    assert sorted(refusal.keys) == sorted(words)


@pytest.mark.parametrize("size", [0, -2, -64])
@pytest.mark.parametrize("word", AXES)
def test_a_size_below_one_is_refused(word, size):
    refusal = refusal_of({word: size})
    assert (refusal.keys, refusal.remedy) == ((word,), f"{word}=1")


def test_data_words_that_do_not_divide_the_ranks_are_refused_with_the_largest_that_does():
    assert refusal_of({"ici_data_parallelism": 12}).remedy == "ici_data_parallelism=8"
    assert refusal_of({"ici_fsdp_parallelism": 8, "dcn_data_parallelism": 1}).remedy == (
        "dcn_data_parallelism=8"
    )
    too_many = {"dcn_fsdp_parallelism": 65, "ici_data_parallelism": 2}
    assert refusal_of(too_many).remedy == "sizes with the product 64"
    words = {"ici_fsdp_parallelism": 5, "dcn_data_parallelism": 3}
    assert refusal_of(words).remedy == "sizes with the product 64"
