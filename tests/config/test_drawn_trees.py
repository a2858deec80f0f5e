import re
import textwrap
from collections import Counter
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import Phase, given
from hypothesis import settings as run
from omegaconf._utils import get_yaml_loader

from rampcli.files import bundled
from rampcli.settings.by_key import settings
from tests.config.drawn_trees import Composed, Tree, composed_by_both, drafts
from tests.config.plain_hydra import written

DRAWN = 60
FEATURES = (
    "own primary",
    "interpolated option",
    "extends a bundled option",
    "entry: config",
    "entry: group",
    "entry: optional",
    "entry: absent",
    "entry: list",
    "entry: null",
    "entry: ???",
    "default package",
    "@_here_",
    "@_group_",
    "@_global_",
    "@_global_.optim",
    "@checkpoint",
    "override",
    "override with a package",
    "_self_ before others",
    "_self_ last",
    "no _self_",
    "???",
    "null",
    "interpolation",
    "relative interpolation",
    "oc.select",
    "interpolation in a word",
    "+group",
    "+group@package",
    "+group three levels deep",
    "group=",
    "list of options in a word",
    "~group",
    "key=",
    "+key=",
    "++key=",
    "~key",
)


@cache
def sample() -> list[tuple[Tree, Composed | None]]:
    """Returns drafts, and what is composed of each that Hydra takes."""
    found = []

    @run(max_examples=DRAWN, derandomize=True, database=None, phases=[Phase.generate])
    @given(drafts())
    def draw(tree):
        found.append((tree, composed_by_both(tree)))

    draw()
    return found


@pytest.fixture
def composed() -> list[Composed]:
    return [one for _, one in sample() if one is not None]


def test_hydra_composes_most_drafts_and_nearly_every_feature_is_among_them(composed):
    assert len(composed) >= 0.6 * len(sample())
    seen = Counter(feature for one in composed for feature in one.tree.features)
    rare = [feature for feature in FEATURES if not seen[feature]]
    assert len(rare) <= len(FEATURES) // 10, rare


def test_settings_have_the_values_that_hydra_composes_and_else_their_defaults(composed):
    defaults = {key: one.default for key, one in settings().items()}
    for one in composed:
        assert one.values == defaults | one.expected, str(one.tree)


def test_the_place_of_each_value_is_the_line_or_the_word_that_holds_it(composed):
    for one in composed:
        places = {key: one.places[key] for key in one.expected_places}
        assert places == one.expected_places, str(one.tree)


def test_the_line_at_the_place_of_a_value_holds_it(composed):
    for one in composed:
        of_mappings = {key for key, value in one.unresolved.items() if isinstance(value, dict)}
        assert one.expected_places.keys() == one.unresolved.keys() - of_mappings
        with written(one.tree.files) as folder:
            for key, place in one.expected_places.items():
                held = value_at(place, key, folder, one.tree.words)
                assert held == one.unresolved[key], str(one.tree)


def value_at(place: str, key: str, folder: Path, words: tuple[str, ...]):
    """Returns what a file or a command line has at the place of a key."""
    if place.endswith(" (command line)"):
        word = place.removesuffix(" (command line)")
        assert word in [one.lstrip("+") for one in words]
        assert word.startswith(f"{key}=")
        return OverridesParser.create().parse_override(word).value()
    shown, file, number = re.fullmatch(r"(?:(.*) \()?([\w/]+\.yaml):(\d+)\)?", place).groups()
    path = next(path for among in (folder, bundled("conf")) if (path := among / file).exists())
    line, *rest = path.read_text(encoding="utf-8").splitlines()[int(number) - 1 :]
    indent = len(line) - len(line.lstrip())
    items = takewhile(lambda one: one.startswith(f"{' ' * indent}  - "), rest)
    tree = yaml.load(textwrap.dedent("\n".join([line, *items])), Loader=get_yaml_loader())
    name = key.rpartition(".")[2]
    value = tree[name] if name in tree else next(iter(tree.values()))[name]  # or in braces
    assert shown == (value if "${" in str(value) else None)
    return value
