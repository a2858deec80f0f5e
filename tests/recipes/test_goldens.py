"""Golden settings: the settings of every recipe that differ from the defaults of the schema.

`make goldens` writes the file anew.
"""

import json
from pathlib import Path

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import leaves
from rampcli.settings.config import Config

FILE = Path(__file__).with_name("goldens.json")
REQUIRED = {
    "shakespeare_char": ["data.path=my.txt"],
    "fine_tune": ["model.init_from=my_model", "data.path=my.jsonl"],
}
"""Required words by recipe."""


def settings_of(name: str) -> dict[str, object]:
    """Returns the resolved settings of a recipe that differ from the defaults."""
    recipe = apply_overrides(getattr(llm, name).pretrain_recipe(), REQUIRED.get(name, [])).config()
    defaults = dict(leaves(Config()))
    found = dict(leaves(resolve(recipe).config))
    return {key: value for key, value in found.items() if value != defaults[key]}


def to_text(goldens: dict[str, dict[str, object]]) -> str:
    """Returns JSON with one setting per line, so that a change shows as one line of a diff."""
    blocks = []
    for name, found in goldens.items():
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
        blocks.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def test_goldens_and_recipes_match_one_to_one():
    assert list(json.loads(FILE.read_text(encoding="utf-8"))) == llm.recipe_names()


@pytest.mark.parametrize("name", llm.recipe_names())
def test_the_settings_of_a_recipe_equal_its_golden(name):
    golden = json.loads(FILE.read_text(encoding="utf-8"))[name]
    assert settings_of(name) == golden


if __name__ == "__main__":
    FILE.write_text(to_text({name: settings_of(name) for name in llm.recipe_names()}), "utf-8")
