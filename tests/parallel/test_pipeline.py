from hypothesis import given
from hypothesis import strategies as st

from rampcli.parallel.pipeline import layers_of_rank


@given(size=st.integers(1, 5), ranks=st.integers(1, 6), parts=st.integers(1, 4))
def test_every_layer_is_on_one_rank_and_stages_are_in_order(size, ranks, parts):
    layers = size * ranks * parts
    of_rank = [layers_of_rank(layers, ranks=ranks, rank=rank, parts=parts) for rank in range(ranks)]
    in_order = [of_rank[rank][part] for part in range(parts) for rank in range(ranks)]
    assert [layer for stage in in_order for layer in stage] == list(range(layers))
    assert {len(stage) for stage in in_order} == {size}
