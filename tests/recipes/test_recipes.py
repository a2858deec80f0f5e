import inspect
import re

import numpy as np
import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.config.snapshot import read, to_yaml
from rampcli.data.sources import open_corpora
from rampcli.errors import UsageError
from rampcli.estimate.model_size import count_parameters
from rampcli.planning.resolve import resolve
from rampcli.report.explain import explain
from rampcli.report.memory import memory_notes
from rampcli.settings.by_key import leaves
from recipes.test_goldens import REQUIRED

NAMES = llm.recipe_names()


@pytest.fixture(scope="module")
def resolved():
    """All recipes, resolved. Those that read a file are given a path."""
    configs = {name: getattr(llm, name).pretrain_recipe() for name in NAMES}
    required = REQUIRED | {"shakespeare_char": ["data.path=my.txt", "model.vocab_size=65"]}
    return {
        name: resolve(apply_overrides(config, required.get(name, [])))
        for name, config in configs.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_composes_and_plans_under_its_own_name(resolved, name):
    plan = resolved[name].plan
    assert resolved[name].config.name == name
    assert plan.end_sample == plan.ramp.samples_after(sum(stage.steps for stage in plan.stages))
    assert plan.stages[-1].global_batch_size == plan.global_batch_size
    assert plan.notes == ()


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_fits_its_gpus_by_its_estimate(resolved, name):
    assert memory_notes(resolved[name].phases[0]) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_snapshot_of_every_recipe_is_read_back_unchanged(resolved, name, tmp_path):
    (tmp_path / "config.yaml").write_text(to_yaml(resolved[name].config), encoding="utf-8")
    assert read(tmp_path / "config.yaml") == resolved[name].config


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fine_tune"])
def test_a_recipe_takes_its_model_from_the_file_of_the_same_name(resolved, name):
    for key in ("num_layers", "hidden_size", "num_attention_heads", "init_std"):
        place = explain(f"model.{key}", resolved[name])["set_by"]
        assert place.startswith(f"model/{name}.yaml:")


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_of_a_recipe_says_what_it_trains_and_names_its_source(name):
    summary, *reasons, source = inspect.getdoc(getattr(llm, name).pretrain_recipe).split("\n\n")
    assert summary.startswith("Fine-tunes " if name == "fine_tune" else "Pretrains ")
    assert "\n" not in summary
    assert reasons
    assert re.fullmatch(r"Source: \w[^\n]+", source)


def test_a_value_of_a_recipe_is_placed_within_its_function(resolved):
    place = explain("parallel.context_parallel_size", resolved["llama3_8b"])["set_by"]
    file, _, line = place.partition(":")
    lines, first = inspect.getsourcelines(llm.llama3_8b.pretrain_recipe)
    assert file == "recipes/llama.py"
    assert first <= int(line) < first + len(lines)


def test_the_nodes_of_gpt3_5b_are_those_of_nemos_documentation(resolved):
    plan = resolved["gpt3_5b"].plan
    assert [stage.global_batch_size for stage in plan.stages] == [
        256,
        512,
        768,
        1024,
        1280,
        1536,
        1792,
        2048,
    ]
    assert [stage.num_nodes for stage in plan.stages] == [8, 8, 8, 8, 10, 12, 14, 16]


def test_llama3_8b_leaves_four_data_parallel_ranks_on_a_node_of_eight(resolved):
    (stage,) = resolved["llama3_8b"].plan.stages
    assert (stage.global_batch_size, stage.data_parallel_size, stage.accumulate_grad_batches) == (
        512,
        4,
        128,
    )


def test_llama3_tiny_grows_from_one_process_to_two_on_the_standard_library(resolved):
    worlds = [stage.world_size for stage in resolved["llama3_tiny"].plan.stages]
    assert worlds == sorted(worlds)
    assert (worlds[0], worlds[-1]) == (1, 2)
    assert resolved["llama3_tiny"].config.data.source == "stdlib"
    assert resolved["llama3_tiny"].config.model.vocab_size == 256


def test_shakespeare_char_takes_nanogpts_tokens_in_a_third_fewer_steps(resolved):
    config, plan = resolved["shakespeare_char"].config, resolved["shakespeare_char"].plan
    assert plan.end_sample * config.data.sequence_length == 2000 * 12 * 64
    assert [(stage.global_batch_size, stage.steps) for stage in plan.stages] == [
        (12, 666),
        (24, 667),
    ]
    assert count_parameters(config.model, sequence_length=64) == 755_968


def test_sort_digits_has_room_for_one_pair_and_takes_forty_steps(resolved):
    config, plan = resolved["sort_digits"].config, resolved["sort_digits"].plan
    assert [(stage.global_batch_size, stage.steps) for stage in plan.stages] == [(64, 40)]
    corpora = open_corpora(config)
    [corpus] = corpora.training.corpora
    assert corpus.pairs_per_window == 1
    assert bytes(corpora.training.read(np.arange(1)).tokens[0].tolist()).endswith(b"\n")


def test_shakespeare_char_requires_a_path_to_a_text():
    with pytest.raises(UsageError) as refused:
        resolve(llm.shakespeare_char.pretrain_recipe())
    assert refused.value.keys == ("data.source", "data.path")


def test_shakespeare_char_trains_on_nine_tenths_of_one_text_and_validates_on_the_last(tmp_path):
    text = "".join(chr(48 + number % 65) for number in range(640_000))
    (tmp_path / "my.txt").write_text(text, encoding="utf-8")
    words = [f"data.path={tmp_path / 'my.txt'}", "trainer.val_samples=999", "model.vocab_size=65"]
    corpora = open_corpora(
        resolve(apply_overrides(llm.shakespeare_char.pretrain_recipe(), words)).config
    )
    assert (corpora.training.corpora[0].first, corpora.training.corpora[0].end) == (0, 576_000)
    assert (corpora.validation[None].corpora[0].first, corpora.validation[None].corpora[0].end) == (
        576_000,
        640_000,
    )


def test_llama3_8b_gives_the_same_snapshot_from_typed_words_and_python():
    typed = apply_overrides(
        llm.from_factory("llama3_8b"),
        [
            "data.micro_batch_size=4",
            "model.global_batch_size=1024",
            "model.rampup_batch_size=[256,128,50000000]",
            "trainer.num_nodes=16",
        ],
    ).config()
    written = llm.llama3_8b.pretrain_recipe()
    written.data.micro_batch_size = 4
    written.model.global_batch_size = 1024
    written.model.rampup_batch_size = [256, 128, 50_000_000]
    written.trainer.num_nodes = 16
    called = apply_overrides(
        llm.llama3_8b.pretrain_recipe(num_nodes=16),
        [
            "model.micro_batch_size=4",
            "data.global_batch_size=1024",
            "model.rampup_batch_size=[256,128,50M]",
        ],
    ).config()
    snapshots = [dict(leaves(resolve(config).config)) for config in (typed, written, called)]
    assert snapshots[0] == snapshots[1] == snapshots[2]
    assert [stage.num_nodes for stage in resolve(typed).plan.stages] == [
        stage.num_nodes for stage in resolve(written).plan.stages
    ]


def test_a_recipe_takes_its_nodes_and_processes_as_arguments():
    config = llm.llama3_8b.pretrain_recipe(num_nodes=4, num_gpus_per_node=2)
    assert (config.trainer.num_nodes, config.trainer.devices) == (4, 2)
    assert resolve(config).plan.stages[0].data_parallel_size == 4
