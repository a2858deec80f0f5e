import json

import pytest

from numerics.goldens import FILE, RECIPES, train

GOLDENS = json.loads(FILE.read_text(encoding="utf-8"))


def test_goldens_and_recipes_match_one_to_one():
    assert list(GOLDENS) == list(RECIPES)


@pytest.mark.parametrize("recipe", RECIPES)
def test_ten_steps_give_the_golden_losses(recipe):
    """The tolerance is for other processors, which round differently."""
    rows = train(recipe)
    assert {row["global_batch_size"] for row in rows} == {4, 8}
    for row, golden in zip(rows, GOLDENS[recipe], strict=True):
        assert row["order_hash"] == golden["order_hash"]
        assert row["loss"] == pytest.approx(golden["loss"], abs=1e-4)
        assert row["grad_norm"] == pytest.approx(golden["grad_norm"], rel=1e-3)
