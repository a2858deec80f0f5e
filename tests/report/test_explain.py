import copy
import json
import re

import pytest
import yaml

from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides
from rampcli.config.reading import quoted
from rampcli.config.values import put
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve
from rampcli.report.explain import derived, explain, with_provenance
from rampcli.report.plan_notes import costs_text
from rampcli.settings.by_key import find_setting, flatten, foreign_words, leaves, settings
from rampcli.settings.config import Config
from rampcli.words import DERIVED, SPELLINGS


@pytest.fixture
def explained(composed):
    """Explains a key, with words laid over the recipe."""
    return lambda key, *words: explain(key, resolve(apply_overrides(composed, words)))


def told(fact):
    """Returns the place that set a value, and the values that it overrode."""
    return fact["set_by"], [(entry["set_by"], str(entry["value"])) for entry in fact["overrode"]]


def test_a_setting_is_explained_in_full(explained, gpt3_5b_place):
    assert explained("optim.lr", "optim.lr=0.5") == {
        "key": "optim.lr",
        "value": 0.5,
        "derived": None,
        "type": "a number",
        "unit": None,
        "default": 0.001,
        "range": "from 0",
        "doc": "Highest learning rate.",
        "set_by": "command line",
        "overrode": [
            {"set_by": gpt3_5b_place, "value": 0.00016},
            {"set_by": "default", "value": 0.001},
        ],
        "costs": None,
        "in_run": None,
        "in_phases": {},
    }


def test_the_ways_to_reduce_gradients_are_explained_with_what_they_cost(explained):
    fact = explained("trainer.accumulate_reduce", "trainer.device_memory_gb=44")
    assert (fact["value"], fact["set_by"]) == ("each", "the plan")
    assert costs_text(fact["key"], fact["costs"]) == [
        "last: ~47GiB per rank, 19GiB of gradients sent per step",
        "each: ~29GiB per rank, 75GiB of gradients sent per step",
    ]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("throughput.samples_per_s_per_gpu=1", "trainer.max_samples=57_600"),
            "compiling takes ~1:00 and saves ~12:22 of ~2:03:44",
        ),
        (
            ("trainer.max_samples=null", "trainer.max_steps=null"),
            "compiling takes ~1:00 and pays in a run without an end",
        ),
    ],
    ids=["an end", "no end"],
)
def test_compilation_is_explained_with_what_it_takes_and_saves(explained, words, text):
    words = ("trainer.num_nodes=1", "model.rampup_batch_size=null", *words)
    fact = explained("trainer.compile", *words)
    assert (fact["value"], fact["set_by"]) == (True, "the plan")
    assert costs_text(fact["key"], fact["costs"]) == [text]


@pytest.mark.parametrize(
    ("key", "type_name", "unit", "default", "range_name"),
    [
        ("trainer.num_nodes", "an integer", "nodes", 1, "from 1 up to 100,000"),
        ("trainer.max_tokens", "an integer or null", "tokens", None, "from 1"),
        ("model.rampup_batch_size", "a list of integers or null", "samples", None, None),
        ("rampup.restart_s", "a number", "seconds", 60.0, "from 0"),
        ("throughput.mfu", "a number or null", None, None, "above 0 up to 1"),
        ("rampup.node_policy", "one of nemo, best, fixed", None, "nemo", None),
        ("model.bias", "true or false", None, False, None),
        ("name", "a string", None, "run", None),
        ("per_device_batch_size", "a number or null", None, None, None),
    ],
)
def test_type_unit_default_and_range_come_from_the_schema(
    explained, key, type_name, unit, default, range_name
):
    fact = explained(key)
    assert (fact["type"], fact["unit"], fact["default"], fact["range"]) == (
        type_name,
        unit,
        default,
        range_name,
    )


def test_every_setting_can_be_explained_and_written_as_json(composed):
    resolved = resolve(composed)
    for key in settings():
        fact = explain(key, resolved)
        assert json.loads(json.dumps(fact)) == fact
        assert fact["doc"]


def test_a_value_from_the_schema_is_a_default_that_overrides_nothing(explained):
    assert told(explained("seed")) == ("default", [])


def test_a_value_from_a_file_names_its_line(explained, line_of):
    line = line_of("conf/batch/nemo_gpt3.yaml", "global_batch_size: 2048")
    assert told(explained("model.global_batch_size")) == (
        f"batch/nemo_gpt3.yaml:{line}",
        [("default", "None")],
    )


def test_a_value_from_a_recipe_names_the_line_that_composes(explained, gpt3_5b_place):
    assert told(explained("trainer.num_nodes")) == (gpt3_5b_place, [("default", "1")])


def test_a_typed_value_lists_the_values_it_overrides_nearest_first(
    explained, line_of, gpt3_5b_place
):
    file = f"batch/nemo_gpt3.yaml:{line_of('conf/batch/nemo_gpt3.yaml', 'rampup_batch_size: null')}"
    fact = explained("model.rampup_batch_size", "model.rampup_batch_size=[512,512,1M]")
    assert fact["value"] == [512, 512, 1_000_000]
    assert told(fact) == (
        "command line",
        [(gpt3_5b_place, "[256, 256, 10000000]"), (file, "None"), ("default", "None")],
    )


def test_a_spelling_is_named_as_the_source_of_its_canonical_key(explained, line_of):
    file = f"batch/nemo_gpt3.yaml:{line_of('conf/batch/nemo_gpt3.yaml', 'global_batch_size: 2048')}"
    fact = explained("model.global_batch_size", "data.global_batch_size=4096")
    assert fact["value"] == 4096
    assert told(fact) == (
        "data.global_batch_size=4096 (command line)",
        [(file, "2048"), ("default", "None")],
    )


def test_maxtexts_words_are_named_as_the_source_of_the_ramp(explained, gpt3_5b_place):
    words = (
        "per_device_batch_size=16",
        "enable_rampup_batch_size=true",
        "per_device_batch_size_start=4",
        "per_device_batch_size_increment=2",
        "global_rampup_samples=500",
    )
    fact = explained("model.rampup_batch_size", *words)
    assert fact["value"] == [512, 256, 500]
    place, overrode = told(fact)
    assert place == "enable_rampup_batch_size=true (command line)"
    assert overrode[0] == (gpt3_5b_place, "[256, 256, 10000000]")
    assert told(explained("rampup.semantics", *words)) == (place, [("default", "megatron")])


def test_an_edit_in_python_is_named_as_one(recipe):
    recipe.optim.lr = 0.5
    fact = explain("optim.lr", resolve(recipe))
    assert (fact["value"], fact["set_by"]) == (0.5, "Python")
    laid = explain("optim.lr", resolve(apply_overrides(recipe, ["seed=1"])))
    assert (laid["value"], laid["set_by"]) == (0.5, "recipe")


def test_an_open_setting_is_explained_with_its_derived_value(explained):
    assert (
        explained("trainer.accumulate_grad_batches")["value"],
        explained("trainer.accumulate_grad_batches")["derived"],
    ) == (None, 4)
    assert explained("run_dir", "name=first")["derived"] == "runs/first"
    assert explained("model.global_batch_size")["derived"] is None


def test_derived_values_are_those_of_the_largest_batch(composed):
    resolved = resolve(
        apply_overrides(composed, ["model.step_batch_size_schedule='0:1024 1B:512'"])
    )
    assert derived(resolved)["model.global_batch_size"] == resolved.plan.global_batch_size
    largest = max(resolved.plan.stages, key=lambda stage: stage.global_batch_size)
    assert largest.stage == 0
    assert derived(resolved)["trainer.accumulate_grad_batches"] == largest.accumulate_grad_batches


def test_a_word_of_another_system_is_explained_with_its_own_value(explained):
    fact = explained("data.global_batch_size", "data.global_batch_size=4096")
    assert (fact["value"], fact["set_by"]) == (4096, "command line")
    assert explained("data.global_batch_size")["value"] is None


SYSTEMS = r"(NeMo [12]|(NeMo 1 and )?Megatron Bridge|MaxText|Hydra|`rampcli rl`): "


def test_each_word_of_another_system_is_explained_by_a_sentence_of_its_own(explained):
    docs = {word: explained(word)["doc"] for word in foreign_words()}
    assert len(set(docs.values())) == len(docs)
    for word, doc in docs.items():
        assert re.match(SYSTEMS, doc), word
        named = re.findall(r"`([a-z_.]+)\b[^`]*`", doc)
        known = {key for key in named if key in settings()}
        assert known, word
        words = {
            "true",
            "false",
            "null",
            "samples",
            "steps",
            "start",
            "rampcli",
            "runs",
            *foreign_words(),
        }
        assert set(named) - known <= words, word
        if word in SPELLINGS:
            assert SPELLINGS[word] in named


@pytest.mark.parametrize(
    ("words", "load", "train", "micro"),
    [
        ((), 2048, 2048, 512),
        (("data.expansion_factor_real_data=2",), 4096, 2048, 512),
        (("per_device_batch_size=8", "gradient_accumulation_steps=3"), 3072, 3072, 1024),
        (
            ("parallel.tensor_parallel_size=8", "data.micro_batch_size=4"),
            2048 // 64 * 128,
            2048,
            64,
        ),
        (("rampup.semantics=maxtext",), 2048, 2048, 2048),
    ],
)
def test_the_batches_that_maxtext_derives_are_explained(explained, words, load, train, micro):
    batches = {name: explained(name, *words)["value"] for name in DERIVED}
    assert batches == {
        "global_batch_to_load": load,
        "global_batch_size_to_load": load,
        "global_batch_to_train": train,
        "global_batch_size_to_train_on": train,
        "micro_batch_size_to_train_on": micro,
    }


@pytest.mark.parametrize("name", DERIVED)
def test_a_number_that_maxtext_derives_cannot_be_set_and_the_keys_to_set_are_named(composed, name):
    with pytest.raises(UsageError) as refusal:
        apply_overrides(composed, [f"{name}=64"])
    assert refusal.value.keys == (name,)
    assert all(find_setting(way.removesuffix("=VALUE")) for way in refusal.value.remedies)


@pytest.mark.parametrize("key", ["optim.learning_rate", "optim", "", "model.", "_target_"])
def test_an_unknown_key_is_refused(composed, key):
    with pytest.raises(UsageError):
        explain(key, resolve(composed))


@pytest.mark.parametrize(
    "words",
    [
        [],
        [
            "per_device_batch_size=4",
            "gradient_accumulation_steps=2",
            "enable_rampup_batch_size=false",
        ],
        [
            "model.step_batch_size_schedule='samples: 0:768 1M:1536'",
            "rampup.efficiency='1:9000 4:11500'",
        ],
        ["run_dir='/a b/#c: d'", "trainer.gradient_clip_val=null", "model.num_query_groups=4"],
    ],
)
def test_the_configuration_with_its_sources_is_read_back_as_the_settings(composed, words):
    resolved = resolve(apply_overrides(composed, words))
    text = with_provenance(resolved)
    assert flatten(yaml.safe_load(text)) == dict(leaves(resolved.config))


def test_workers_can_read_the_configuration_with_its_sources(composed, tmp_path):
    resolved = resolve(composed)
    (tmp_path / "config.yaml").write_text(with_provenance(resolved), encoding="utf-8")
    assert snapshot.read(tmp_path / "config.yaml") == resolved.config


@pytest.mark.parametrize(
    "name",
    [
        "on",
        "null",
        "1e3",
        "007",
        "yes",
        "No",
        "y",
        "a: b",
        "#x",
        "a #b",
        "it's",
        "=",
        "~",
        "2020-01-01",
        "ü🚀",
        "@a",
        "{}",
        "[",
    ],
)
def test_any_name_is_read_back_unchanged(composed, name):
    resolved = resolve(apply_overrides(composed, [f"name={quoted(name)}"]))
    assert yaml.safe_load(with_provenance(resolved))["name"] == name


def test_every_line_names_the_source_of_its_value(composed):
    resolved = resolve(
        apply_overrides(
            composed,
            ["data.global_batch_size=4096", "trainer.num_nodes=8", "rampup.node_policy=best"],
        )
    )
    lines = with_provenance(resolved).splitlines()
    sections = {name for key in settings() for name in key.split(".")[:-1]}
    entry = {
        line.partition(":")[0].strip(): line.partition("  # ")[2]
        for line in lines
        if "  # " in line
    }
    assert [line for line in lines if "  # " not in line and line.strip(" :") not in sections] == []
    assert len([line for line in lines if "  # " in line]) == len(dict(leaves(resolved.config)))
    assert entry["seed"] == "default"
    assert entry["global_batch_size"].startswith(
        "data.global_batch_size=4096 (command line); overrides 2048 (batch/nemo_gpt3.yaml:"
    )
    assert entry["num_nodes"].startswith("command line; overrides 16 (recipes/gpt3.py:")
    assert entry["node_policy"] == "command line"
    assert entry["accumulate_grad_batches"] == "default; derived: 16"
    assert entry["run_dir"] == "default; derived: runs/gpt3_5b"


def test_lines_follow_the_order_of_the_schema_and_comments_are_aligned(composed):
    text = with_provenance(resolve(composed))
    assert list(flatten(yaml.safe_load(text))) == list(settings())
    assert len({line.index("  # ") for line in text.splitlines() if "  # " in line}) == 1


def test_a_configuration_built_in_python_can_be_explained():
    config = Config()
    for key, value in {"model.global_batch_size": 16, "data.micro_batch_size": 4}.items():
        put(config, key, value)
    before = copy.deepcopy(config)
    resolved = resolve(config)
    assert told(explain("model.global_batch_size", resolved)) == ("Python", [("default", "None")])
    assert config == before


PHASES = (
    *("phases.a.until=steps:10", "phases.b.until=steps:20"),
    *("phases.b.optim.lr=0.5", "phases.b.data.micro_batch_size=1"),
)


def test_a_setting_of_a_phase_is_explained_with_what_the_run_has(explained, gpt3_5b_place):
    fact = explained("phases.b.optim.lr", *PHASES)
    assert (fact["value"], fact["set_by"]) == (0.5, "phases.b.optim.lr=0.5 (command line)")
    assert fact["in_run"] == {"value": 0.00016, "set_by": gpt3_5b_place}
    assert explained("phases.a.optim.lr", *PHASES)["value"] == 0.00016
    run = explained("optim.lr", *PHASES)
    assert (run["value"], run["in_phases"], run["in_run"]) == (0.00016, {"b": 0.5}, None)
    assert explained("phases.b.model.micro_batch_size", *PHASES)["value"] == 1


def test_the_end_of_a_phase_is_explained_as_a_position(explained, composed):
    end = resolve(apply_overrides(composed, PHASES)).plan.phases[1].end
    derived = explained("phases.b.until", *PHASES)["derived"]
    assert derived == {"samples": end.samples, "steps": 20, "tokens": end.tokens}


@pytest.mark.parametrize(
    "key", ["phases.c.until", "phases.b.nothing", "phases.b.per_device_batch_size"]
)
def test_what_no_phase_has_is_not_explained(explained, key):
    with pytest.raises(UsageError) as caught:
        explained(key, *PHASES)
    assert caught.value.remedies
