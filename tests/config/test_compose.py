import copy
import shutil
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hypothesis import HealthCheck, given
from hypothesis import settings as run
from hypothesis import strategies as st
from omegaconf import OmegaConf

from rampcli.config.compose import apply_overrides, compose, primary_stack
from rampcli.config.groups import Primary, group_names, option_names, some_of
from rampcli.config.values import typed
from rampcli.errors import ErrorReport, UsageError, UsageErrors
from rampcli.files import bundled
from rampcli.llm import from_factory, recipe_names
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import flatten, leaves
from rampcli.settings.by_key import settings as settings_by_key
from tests.config.plain_hydra import compose_plainly


def snapshot(config):
    return dict(leaves(resolve(config).config))


def test_later_choices_override_earlier_ones_and_values_override_files():
    config = compose(
        "optim=nemo_adam", "data=stdlib", "data=mock", "seed=1", "optim.lr=0.5", "seed=2"
    )
    assert (config.data.source, config.seed, config.optim.lr) == ("mock", 2, 0.5)
    assert config.optim.min_lr == 3e-5


def test_a_recipe_may_name_keys_in_the_section_of_nemos_launcher():
    assert compose("optim=nemo_adam", "training.optim.lr=0.5").optim.lr == 0.5


def test_typed_settings_equal_assigned_ones(composed, recipe):
    typed = [
        "optim.lr=0.5",
        "model.rampup_batch_size=[512,512,1K]",
        "trainer.max_samples=2M",
        "rampup.node_policy=fixed",
        "model.bias=true",
    ]
    recipe.optim.lr = 0.5
    recipe.model.rampup_batch_size = [512, 512, 1000]
    recipe.trainer.max_samples = 2_000_000
    recipe.rampup.node_policy = "fixed"
    recipe.model.bias = True
    assert snapshot(apply_overrides(composed, typed).config()) == snapshot(recipe)
    assert snapshot(apply_overrides(composed, typed[::-1]).config()) == snapshot(recipe)


def test_typed_settings_override_assignments_of_the_recipe(recipe):
    recipe.optim.lr, recipe.seed = 0.5, 5
    overridden = apply_overrides(recipe, ["optim.lr=0.25"]).config()
    assert (overridden.optim.lr, overridden.seed) == (0.25, 5)


def test_overriding_does_not_change_the_recipes_configuration(composed):
    before, stack = copy.deepcopy(composed), copy.deepcopy(composed.stack)
    apply_overrides(composed, ["data=stdlib", "optim.lr=0.5"])
    assert composed == before
    assert composed.stack == stack


def test_another_option_keeps_the_other_choices_and_assignments_of_the_recipe(recipe):
    recipe.trainer.max_steps = 5000
    overridden = apply_overrides(
        recipe, ["data=stdlib", "optim=nemo_adam", "optim.warmup_steps=7"]
    ).config()
    assert overridden.data.source == "stdlib"
    assert (overridden.optim.lr, overridden.optim.eps, overridden.optim.warmup_steps) == (
        3e-4,
        1e-5,
        7,
    )
    assert (overridden.name, overridden.trainer.num_nodes, overridden.trainer.max_steps) == (
        "gpt3_5b",
        16,
        5000,
    )
    assert overridden.model == recipe.model


@pytest.mark.parametrize("second", ["seed=5", "data=stdlib"])
def test_overriding_twice_equals_overriding_once_with_all_words(composed, second):
    first = ["optim.lr=0.5", "model.init_std=0.5"]
    assert dict(
        leaves(apply_overrides(apply_overrides(composed, first).config(), [second]).config())
    ) == dict(leaves(apply_overrides(composed, [*first, second]).config()))


def test_overriding_nothing_gives_an_equal_copy(composed):
    overridden = apply_overrides(composed, []).config()
    assert overridden == composed
    assert overridden is not composed


def test_all_errors_are_raised_at_once_or_collected_by_a_report(composed):
    words = ["seed=many", "seeed=5", "data=nothing", "optim.lr=0.25", "model.bias"]
    with pytest.raises(UsageErrors) as refusal:
        apply_overrides(composed, words)
    report = ErrorReport()
    overridden = apply_overrides(composed, words, report=report).config()
    assert [str(error) for error in refusal.value.errors] == [str(error) for error in report.errors]
    assert [error.keys[:1] for error in report.errors] == [("data",), ("seeed",), (), ("seed",)]
    assert [error.set_by for error in report.errors] == [
        (f"{word} (command line)",)
        for word in ("data=nothing", "seeed=5", "model.bias", "seed=many")
    ]
    assert (overridden.optim.lr, overridden.seed, overridden.data.source) == (
        0.25,
        1234,
        "mock",
    )


def test_words_from_another_source_are_placed_there(composed):
    overridden = apply_overrides(composed, ["optim.lr=0.25"], place="measured in runs/a").config()
    assert overridden.stack.entry("optim.lr").place == "measured in runs/a"
    with pytest.raises(UsageError) as refusal:
        apply_overrides(composed, ["seed=many"], place="measured in runs/a")
    assert refusal.value.set_by == ("seed=many (measured in runs/a)",)


@pytest.mark.parametrize("folder", ["mine", "it's, a [folder]=1", "modèle 🚀", "${x}"])
def test_config_dir_adds_options_to_the_bundled_ones(composed, option, folder):
    mine = option(f"{folder}/optim/mine", "lr: 0.5\nbeta1: 0.8\n") / folder
    overridden = apply_overrides(composed, ["optim=mine", "data=stdlib"], config_dir=mine).config()
    assert (
        overridden.optim.lr,
        overridden.optim.beta1,
        overridden.optim.warmup_steps,
        overridden.data.source,
    ) == (
        0.5,
        0.8,
        None,
        "stdlib",
    )
    assert overridden.stack.entry("optim.beta1").place == "optim/mine.yaml:2"


def test_config_dir_may_be_relative_to_the_working_directory(composed, option, monkeypatch):
    monkeypatch.chdir(option("conf/optim/mine", "lr: 0.5\n"))
    assert (
        apply_overrides(composed, ["optim=mine"], config_dir=Path("conf")).config().optim.lr == 0.5
    )


def test_an_unknown_option_is_refused_with_options_of_config_dir_among_the_suggestions(
    composed, option
):
    mine = option("optim/mine", "lr: 0.5\n")
    with pytest.raises(UsageError) as refusal:
        apply_overrides(composed, ["optim=zzz"], config_dir=mine)
    assert refusal.value.remedy == f"optim={some_of(['mine', *option_names('optim')])}"
    with pytest.raises(UsageError) as refusal:
        apply_overrides(composed, ["optim=min"], config_dir=mine)
    assert refusal.value.remedy == "optim=mine"


def test_an_option_over_the_whole_tree_sets_several_sections(composed, option):
    mine = option(
        "batch/mine",
        "# @package _global_\ndata:\n  micro_batch_size: 2\nmodel:\n  global_batch_size: 32\n",
    )
    overridden = apply_overrides(composed, ["batch=mine"], config_dir=mine).config()
    assert (
        overridden.data.micro_batch_size,
        overridden.model.global_batch_size,
        overridden.model.rampup_batch_size,
    ) == (2, 32, [256, 256, 10_000_000])
    assert overridden.stack.entry("model.global_batch_size").place == "batch/mine.yaml:5"


def test_all_wrong_lines_of_an_option_file_are_reported(composed, option):
    with pytest.raises(UsageErrors) as refusal:
        apply_overrides(
            composed,
            ["optim=mine"],
            config_dir=option("optim/mine", "lr: fast\nbeta1: 0.5\nbeta2: slow\nfoo: 1\n"),
        )
    assert [error.set_by for error in refusal.value.errors] == [
        (f"optim.{name} (optim/mine.yaml:{line})",)
        for line, name in ((1, "lr"), (3, "beta2"), (4, "foo"))
    ]


def test_an_option_file_runs_no_code(composed, option, tmp_path):
    proof = tmp_path / "ran"
    mine = option("optim/mine", f"lr: !!python/object/apply:os.mkdir ['{proof}']\n")
    with pytest.raises(UsageError) as refused:
        apply_overrides(composed, ["optim=mine"], config_dir=mine)
    assert refused.value.set_by == ("optim/mine.yaml:1",)
    assert not proof.exists()


def test_a_group_that_is_chosen_later_overrides_what_was_chosen_before(option):
    mine = option("batch/mine", "# @package _global_\ntrainer:\n  num_nodes: 3\n")
    config = apply_overrides(
        compose("batch=nemo_gpt3", "trainer.num_nodes=16", "trainer.devices=4"),
        ["batch=mine"],
        config_dir=mine,
    ).config()
    assert (config.trainer.num_nodes, config.trainer.devices) == (3, 4)


def test_files_override_each_other_in_the_order_of_the_root_and_not_of_the_words(option):
    root = yaml.safe_load((bundled("conf") / "config.yaml").read_text(encoding="utf-8"))
    groups = [group for entry in root["defaults"] if isinstance(entry, dict) for group in entry]
    groups = [group for group in groups if not group.startswith("override ")]
    sizes = (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "head_size",
        "vocab_size",
        "num_query_groups",
    )
    own = {key: dict.fromkeys(pair) for key, pair in zip(sizes, pairwise(groups), strict=True)}
    for number, group in enumerate(groups):
        model = {key: number for key, pair in own.items() if group in pair}
        mine = option(f"{group}/mine", f"# @package _global_\n{yaml.safe_dump({'model': model})}")
    words = [f"{group}=mine" for group in reversed(groups)]
    values = apply_overrides(compose(), words, config_dir=mine).values()
    assert [values[f"model.{key}"] for key in sizes] == list(range(1, len(groups)))


def test_all_errors_of_a_recipe_are_reported_at_once():
    with pytest.raises(UsageErrors) as refusal:
        compose("model=llama4", "optim.learning_rate=1", "seed=many")
    assert [error.message for error in refusal.value.errors] == [
        "there is no setting optim.learning_rate",
        "model=llama4: there is no conf/model/llama4.yaml",
        "seed=many is not an integer",
    ]
    assert [error.set_by[0].rpartition(":")[0] for error in refusal.value.errors] == [
        f"{word} (config/test_compose.py"
        for word in ("optim.learning_rate=1", "model=llama4", "seed")
    ]


@pytest.mark.parametrize("root", ["model", "hardware", "batch", "optim", "data"])
def test_every_option_of_conf_composes(root):
    for name in option_names(root):
        assert f"{root}/{name}.yaml" in [
            layer.name for layer in compose(f"{root}={name}").stack.composed
        ]


def options_of(name):
    """The words that choose the options of a recipe."""
    choices = from_factory(name).stack.choices
    return [f"{group}={option}" for group, option in choices.items() if group in group_names()]


def assert_composed_as_by_hydra(words):
    with initialize_config_dir(str(bundled("conf")), version_base="1.3"):
        tree = OmegaConf.to_container(hydra_compose("config", overrides=words))
    merged = compose(*words).stack.values()
    by_hydra = {key: typed(key, value) for key, value in flatten(tree).items()}
    assert {key: merged[key] for key in by_hydra} == by_hydra
    assert {key for key in merged if merged[key] != settings_by_key()[key].default} <= set(by_hydra)


@pytest.mark.parametrize("name", recipe_names())
def test_the_options_of_a_recipe_are_composed_as_hydra_composes_them(name):
    assert_composed_as_by_hydra(options_of(name))


@run(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.permutations(sorted(group_names())).flatmap(
        lambda groups: st.tuples(
            *(
                st.sampled_from([f"{group}={option}" for option in option_names(group)])
                for group in groups
            )
        ).flatmap(lambda words: st.integers(0, len(words)).map(lambda count: words[:count]))
    )
)
def test_any_options_are_composed_as_hydra_composes_them(tmp_path, words):
    assert_composed_as_by_hydra(list(words))
    with_folder = apply_overrides(compose(), words, config_dir=tmp_path)
    assert apply_overrides(compose(), words).composed == with_folder.composed


def test_a_mistake_in_a_bundled_file_is_reported_with_its_path(tmp_path, monkeypatch):
    shutil.copytree(bundled("conf"), tmp_path / "conf")
    path = tmp_path / "conf" / "model" / "llama3_8b.yaml"
    path.write_text("num_layers: [")
    for module in ("composition", "groups", "yaml_files"):
        monkeypatch.setattr(f"rampcli.config.{module}.bundled", tmp_path.joinpath)
    with pytest.raises(UsageError, match="do not compose") as refusal:
        compose("model=llama3_8b")
    assert str(path) in refusal.value.message


def test_a_mapping_is_set_in_a_file_on_the_command_line_and_in_python_alike(composed, option):
    folder = option("data/mine", "source: text\npath: a\nvalidation:\n  wiki: b\n  code: c\n")
    named = {"wiki": "b", "code": "c"}
    in_file = apply_overrides(composed, ["data=mine"], config_dir=folder).config()
    word = "data.validation={wiki:b,code:c}"
    typed = apply_overrides(composed, ["data=text", "data.path=a", word]).config()
    assigned = apply_overrides(composed, ["data=text", "data.path=a"]).config()
    assigned.data.validation = dict(named)
    assert in_file.data.validation == typed.data.validation == assigned.data.validation == named
    assigned.data.validation["more"] = "d"
    assert apply_overrides(assigned, []).config().data.validation == {**named, "more": "d"}
    assert typed.data.validation == named


VARIABLES = """# @package _global_
mine: {rate: 3e-3, sizes: [8, 16]}
optim: {lr: "${mine.rate}"}
seed: ${mine.sizes[1]}
"""


@pytest.mark.parametrize(
    ("words", "rate", "seed"),
    [
        (("optim.lr=1e-3",), 1e-3, 16),
        (("~optim.lr", "seed=2"), settings_by_key()["optim.lr"].default, 2),
        (("mine.rate=2e-3", "mine.sizes.1=4"), 2e-3, 4),
        (("mine={rate:2e-3,sizes:[1,2]}",), 2e-3, 2),
    ],
)
def test_variables_of_a_file_are_set_also_in_parts_and_may_end_up_without_use(
    recipe, option, words, rate, seed
):
    folder = option("exp/a", VARIABLES)
    config = resolve(apply_overrides(recipe, ["+exp=a", *words], config_dir=folder)).config
    assert (config.optim.lr, config.seed) == (rate, seed)


def test_a_word_of_another_system_cannot_be_deleted_even_if_it_is_given(recipe):
    with pytest.raises(UsageError, match="it is not a setting"):
        apply_overrides(recipe, ["~data.global_batch_size", "data.global_batch_size=64"])


@pytest.mark.parametrize("word", ["+mine.rate.b=1", "+optim.lr.b=1", "optim.lr.0=1"])
def test_a_part_of_a_value_is_no_setting(recipe, option, word):
    folder = option("exp/a", VARIABLES)
    with pytest.raises(UsageError, match=r"is below mine.rate|is a part of optim.lr"):
        apply_overrides(recipe, ["+exp=a", word], config_dir=folder)


@contextmanager
def few_frames():
    """Ends endless recursion sooner. Composing takes a third of these frames."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(300)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(
    ("files", "places"),
    [
        ({"a": ["config", "a"]}, ["a.yaml:3"]),
        ({"a": ["config", "b", "_self_"], "b": ["a"]}, ["a.yaml:3", "b.yaml:2"]),
        ({"a": ["b"], "b": ["c"], "c": ["b", "config"]}, ["b.yaml:2", "c.yaml:2"]),
        ({"a": ["config", "optional g: b"], "g/b": ["/a@x"]}, ["a.yaml:3", "g/b.yaml:2"]),
        ({"g/a": ["b"], "g/b": ["/g/a"]}, ["g/a.yaml:2", "g/b.yaml:2"]),
    ],
)
def test_files_that_name_each_other_in_a_circle_are_refused_as_by_hydra(option, files, places):
    for name, entries in files.items():
        folder = option(name, "\n  - ".join(["defaults:", *entries]))
    first = next(iter(files))
    with few_frames(), pytest.raises(RecursionError):
        compose_plainly(folder, first, [])
    with pytest.raises(UsageError, match=r"in a circle|names the file itself") as refusal:
        apply_overrides(primary_stack(Primary(name=first, config_dir=folder)), [])
    assert list(refusal.value.set_by) == places
    assert all(name.partition(":")[0] in refusal.value.message for name in places)
