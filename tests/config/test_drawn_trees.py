import re
import textwrap
from collections import Counter
from functools import cache
from itertools import takewhile
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as run
from omegaconf._utils import get_yaml_loader

from rampcli.config.values import typed
from rampcli.files import bundled
from rampcli.settings.by_key import settings
from tests.config.drawn_trees import Tree, compose_ours, drafts, is_composed, trees
from tests.config.plain_hydra import compose_plainly, expected_places, written

DRAWN = 150
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
drawn = run(max_examples=30, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def composed_by_both(tree):
    """Returns the values of our settings, and those that plain Hydra composes."""
    with written(tree.files) as folder:
        values, _ = compose_ours(folder, tree.config_name, tree.words)
        return values, compose_plainly(folder, tree.config_name, tree.words)


@drawn
@given(trees())
def test_settings_have_the_values_that_hydra_composes(tree):
    values, plain = composed_by_both(tree)
    expected = {key: typed(key, value) for key, value in plain.items()}
    assert {key: values[key] for key in expected} == expected


@drawn
@given(trees())
def test_settings_that_hydra_lacks_have_their_defaults(tree):
    values, plain = composed_by_both(tree)
    expected = {key: one.default for key, one in settings().items() if key not in plain}
    assert {key: values[key] for key in expected} == expected


@drawn
@given(trees())
def test_the_place_of_each_value_is_the_line_or_the_word_that_holds_it(tree):
    with written(tree.files) as folder:
        _, places = compose_ours(folder, tree.config_name, tree.words)
        expected = expected_places(folder, tree.config_name, tree.words)
    assert {key: places[key] for key in expected} == expected


@cache
def sample() -> list[tuple[Tree, bool]]:
    """Returns drafts, and whether Hydra composes each."""
    found = []

    @run(max_examples=DRAWN, derandomize=True, database=None, phases=[Phase.generate])
    @given(drafts())
    def draw(tree):
        found.append((tree, is_composed(tree)))

    draw()
    return found


def test_hydra_composes_most_drafts_and_nearly_every_feature_is_among_them():
    composed = [tree for tree, is_accepted in sample() if is_accepted]
    assert len(composed) >= 0.6 * len(sample())
    seen = Counter(feature for tree in composed for feature in tree.features)
    rare = [feature for feature in FEATURES if not seen[feature]]
    assert len(rare) <= len(FEATURES) // 10, rare


def test_the_line_at_the_place_of_a_value_holds_it():
    composed = [tree for tree, is_accepted in sample() if is_accepted]
    for tree in composed:
        with written(tree.files) as folder:
            plain = compose_plainly(folder, tree.config_name, tree.words, resolve=False)
            places = expected_places(folder, tree.config_name, tree.words)
            assert places.keys() == {key for key in plain if not isinstance(plain[key], dict)}
            held = {key: value_at(place, key, folder, tree.words) for key, place in places.items()}
        assert held == {key: plain[key] for key in places}


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
