import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rampcli.config.groups import option_names
from rampcli.config.layers import build_config
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import find_setting, settings
from rampcli.words import FOREIGN
from rampcli.words.nemo_keys import DEFAULTS, MODELS, NEUTRAL
from rampcli.words.nemo_yaml import RULES, Unresolved, is_nemo, read_nemo

FOLDER = Path(__file__).parent / "nemo_files"
FILES = ("launcher", "megatron_gpt", "export")
UNKNOWN = object()
GPT = {  # the least that NeMo 1 needs
    **{"model.micro_batch_size": 1, "model.global_batch_size": 8, "model.data.data_impl": "mock"},
    **{"model.num_layers": 4, "model.hidden_size": 64, "model.num_attention_heads": 4},
    **{"model.data.seq_length": 32, "model.tokenizer.type": "gpt2", "trainer.devices": 1},
    **{"model.optim.name": "fused_adam", "model.optim.lr": 1e-3, "model.optim.weight_decay": 0},
    **{"model.hidden_dropout": 0, "model.attention_dropout": 0, "trainer.max_steps": 1000},
    **{"trainer.val_check_interval": 10, "trainer.limit_val_batches": 1},
}

OmegaConf.register_new_resolver("multiply", lambda a, b: a * b, replace=True)


def leaves_of(name, **launcher):
    """Returns the leaves of a file with its references followed, if the launcher sets them."""
    tree = {"training": yaml.safe_load((FOLDER / f"{name}.yaml").read_text())}
    return dict(flattened(OmegaConf.create(tree | launcher).training))


def flattened(node, prefix=""):
    for key in node:
        value = followed(node, key)
        if isinstance(value, DictConfig) and value:
            yield from flattened(value, f"{prefix}{key}.")
        elif isinstance(value, ListConfig):
            yield f"{prefix}{key}", [followed(value, n) for n in range(len(value))]
        else:
            yield f"{prefix}{key}", {} if isinstance(value, DictConfig) else value


def followed(node, key):
    try:
        value = node[key]
    except OmegaConfBaseException:
        return Unresolved(OmegaConf.to_container(node, resolve=False)[key])
    is_plain = isinstance(node, ListConfig) and isinstance(value, DictConfig | ListConfig)
    return OmegaConf.to_container(value) if is_plain else value


def values_of(run):
    return {key: one.value for key, one in run.settings.items()}


def meaning(**changes):
    """Returns what the smallest file means, with changes; `__` stands for a dot."""
    return read_nemo(GPT | {key.replace("__", "."): value for key, value in changes.items()})


@pytest.mark.parametrize("launcher", [{}, {"data_dir": "/data", "base_results_dir": "/runs"}])
@pytest.mark.parametrize("name", FILES)
def test_each_key_of_a_file_has_exactly_one_outcome(name, launcher):
    leaves = leaves_of(name, **launcher)
    run = read_nemo(leaves)
    decided = {key for one in (*run.settings.values(), *run.options.values()) for key in one.keys}
    outcomes = [*decided, *run.unchanged, *run.unsupported]
    assert len({*outcomes}) == len(outcomes)
    assert {*leaves} <= {*outcomes}
    assert {*run.instead} <= {*run.unsupported}


@pytest.mark.parametrize("name", FILES)
def test_every_value_has_the_type_of_its_setting(name):
    config = build_config(values_of(read_nemo(leaves_of(name, data_dir="/data"))), place=name)
    assert config.model.global_batch_size > 0


def test_rules_and_models_name_what_exists():
    assert all(find_setting(key) for key in RULES)
    assert {option for option, _ in MODELS.values() if option} <= {*option_names("model")}


def test_files_of_nemo_are_told_from_those_in_our_words():
    assert not is_nemo(dict.fromkeys([*settings(), *FOREIGN, "set_by.model.num_layers"], 1))
    assert all(is_nemo(leaves_of(name)) for name in FILES)


def test_a_file_of_the_launcher_has_the_plan_of_the_same_settings_in_our_words():
    run = read_nemo(leaves_of("launcher", data_dir="/data", base_results_dir="/runs"))
    assert run.unsupported == {}
    assert run.notes.keys() == {"model.data.reset_attention_mask"}
    nemos = build_config(values_of(run), place="NeMo")
    ours = build_config(
        {
            **{"name": "small_llama", "seed": 77, "checkpoint.every_steps": 500},
            **{"data.source": "indexed", "data.blend": [0.25, "/data/wiki", 0.75, "/data/web"]},
            **{"data.split": [98, 1.5, 0.5], "data.sequence_length": 1024},
            **{"data.micro_batch_size": 2, "data.eod_mask_loss": True},
            **{"model.num_layers": 8, "model.hidden_size": 512, "model.ffn_hidden_size": 1536},
            **{"model.num_attention_heads": 8, "model.num_query_groups": 4, "model.bias": False},
            # 128,256 tokens are padded to a multiple of 128 x 2 ranks, which they are.
            **{"model.vocab_size": 128_256, "model.norm_epsilon": 1e-6, "model.init_std": 0.015},
            **{"model.rotary_base": 50_000, "model.global_batch_size": 128},
            **{"model.rampup_batch_size": [32, 32, 40_000], "rampup.node_policy": "nemo"},
            **{"parallel.tensor_parallel_size": 2, "trainer.num_nodes": 4, "trainer.devices": 8},
            **{"trainer.accelerator": "gpu", "trainer.precision": "bf16", "optim.beta2": 0.95},
            **{"trainer.max_steps": 5000, "trainer.activation_checkpointing": "full"},
            **{"trainer.gradient_clip_val": 0.5, "trainer.val_every_steps": 500},
            **{"trainer.val_samples": None, "trainer.max_val_samples": 512, "optim.lr": 4e-4},
            **{"optim.min_lr": 4e-5, "optim.warmup_steps": 100, "optim.weight_decay": 0.05},
            **{"phases.decay.until": "steps:4000", "phases.decay.schedule.decay_style": "cosine"},
            "phases.tail.schedule.decay_style": "constant",
        },
        place="ours",
    )
    assert nemos == ours
    assert resolve(nemos).plan == resolve(ours).plan


def test_keys_that_are_left_out_have_nemos_defaults():
    run = read_nemo(leaves_of("megatron_gpt"))
    assert run.unsupported == {}
    assert (
        values_of(run).items()
        >= {
            **{"model.normalization": "layernorm", "model.activation": "gelu", "model.bias": True},
            **{"model.position_embedding": "learned", "model.tie_embeddings": True},
            **{"model.ffn_hidden_size": 512, "model.init_std": 0.02, "optim.eps": 1e-8},
            **{"trainer.gradient_clip_val": None, "seed": 1234},
        }.items()
    )
    assert run.settings["model.normalization"].keys == ()
    assert run.settings["model.vocab_size"].value == 50_304  # a multiple of 64 x 2 ranks
    assert run.settings["optim.warmup_steps"].value == 40
    assert run.settings["rampup.node_policy"].value == "fixed"
    assert run.settings["data.path"].value == "/corpora/books"
    assert run.settings["data.validation_path"].value == "/corpora/held_out"
    assert run.settings["data.split"].value == [1, 0, 0]
    plan = resolve(build_config(values_of(run), place="NeMo")).plan
    assert [stage.global_batch_size for stage in plan.stages] == [8, 12, 16]


def test_an_export_of_nemo_2_chooses_its_model_and_changes_it():
    run = read_nemo(leaves_of("export"))
    assert run.unsupported == {}
    assert run.options["model"].value == "llama3_8b"
    values = values_of(run)
    shape = {key for key in values if key.startswith("model.")} - {"model.global_batch_size"}
    assert shape >= {"model.num_layers", "model.vocab_size"}
    assert not shape & {"model.hidden_size", "model.ffn_hidden_size", "model.rotary_base"}
    assert run.settings["model.num_layers"].keys == ("model.config.num_layers",)
    assert values["trainer.gradient_clip_val"] == 0.8
    assert values["trainer.max_val_samples"] == 512
    stage = resolve(build_config(values, place="NeMo 2")).plan.stages[0]
    assert (stage.global_batch_size, stage.data_parallel_size) == (256, 4)
    assert stage.accumulate_grad_batches == 32


def test_a_value_that_has_no_equal_is_named_as_the_file_names_it():
    leaves = leaves_of("export") | {"model.config._target_": "nemo.collections.llm.GPTConfig"}
    refused = {"model.config.hidden_dropout", "model.config.hidden_size"}
    assert {*read_nemo(leaves).unsupported} > refused
    leaves["model.config._target_"] = "nemo.collections.llm.MambaConfig"
    assert {*read_nemo(leaves).unsupported} == {"model.config._target_"}


@pytest.mark.parametrize("key", NEUTRAL)
def test_a_key_is_unsupported_only_if_its_value_is_active(key):
    values, reason = NEUTRAL[key]
    for value in values or (None,):
        assert read_nemo(GPT | {key: value}).unsupported == {}
    assert read_nemo(GPT | {key: UNKNOWN}).unsupported == {key: reason}


def test_no_dropout_changes_nothing_and_dropout_is_unsupported():
    assert "model.hidden_dropout" in meaning(model__hidden_dropout=0.0).unchanged
    assert {*meaning(model__hidden_dropout=0.1).unsupported} == {"model.hidden_dropout"}
    left_out = {key: value for key, value in GPT.items() if key != "model.hidden_dropout"}
    reason = read_nemo(left_out).unsupported["model.hidden_dropout"]
    assert reason == "is 0.1 if left out, and no model here has dropout"


def test_accumulation_is_nemos_to_derive():
    run = meaning(trainer__accumulate_grad_batches=1)
    assert "trainer.accumulate_grad_batches" in run.unchanged
    assert "trainer.accumulate_grad_batches" not in run.settings


def test_a_key_that_is_not_known_is_unsupported():
    assert {*meaning(model__brand_new=0).unsupported} == {"model.brand_new"}


def test_references_that_cannot_be_followed_matter_only_where_we_read():
    run = read_nemo(leaves_of("launcher"))
    assert run.unsupported == {"model.data.data_prefix": "names ${data_dir}, which is not set"}
    assert run.instead["model.data.data_prefix"] == ("data.source", "data.path", "data.blend")
    assert {"run.results_dir", "exp_manager.explicit_log_dir"} <= {*run.unchanged}
    assert resolve(build_config(values_of(run), place="NeMo")).plan.end_step == 5000


@given(step=st.integers(1, 1000), warmup=st.integers(0, 400), tail=st.integers(1, 500))
def test_a_constant_tail_has_the_learning_rate_of_nemo(step, warmup, tail):
    schedule = {"name": "CosineAnnealing", "warmup_steps": warmup, "constant_steps": tail}
    sched = {f"model.optim.sched.{key}": one for key, one in (schedule | {"min_lr": 1e-4}).items()}
    resolved = resolve(build_config(values_of(read_nemo(GPT | sched)), place="NeMo"))
    share = min(1, max(0, step - warmup) / (1000 - tail - warmup))
    rate = 1e-4 + 9e-4 * (1 + math.cos(math.pi * share)) / 2
    expected = 1e-3 * step / warmup if step < warmup else rate
    phase = resolved.at(8 * (step - 1))
    assert phase.rate.at(8 * step, global_batch_size=8) == pytest.approx(expected)


@given(tokens=st.integers(1, 300_000), multiple=st.integers(1, 256), ranks=st.integers(1, 16))
def test_the_vocabulary_is_the_smallest_multiple_that_holds_the_tokens(tokens, multiple, ranks):
    size = (
        meaning(
            model__tokenizer__type=None,
            model__tokenizer__vocab_size=tokens - 1,
            model__make_vocab_size_divisible_by=multiple,
            model__tensor_model_parallel_size=ranks,
        )
        .settings["model.vocab_size"]
        .value
    )
    assert size % (multiple * ranks) == 0
    assert tokens <= size < tokens + multiple * ranks


@pytest.mark.parametrize(
    ("prefix", "path", "blend"),
    [
        ("/data/wiki", "/data/wiki", None),
        (["/data/wiki"], "/data/wiki", None),
        ([1, "/data/wiki"], "/data/wiki", None),
        (
            ["30", "/data/wiki", ".7e-1", "/data/web"],
            None,
            ["30", "/data/wiki", ".7e-1", "/data/web"],
        ),
    ],
)
def test_corpora_are_read_in_each_of_nemos_forms(prefix, path, blend):
    values = values_of(meaning(model__data__data_impl="mmap", model__data__data_prefix=prefix))
    assert (values["data.source"], values["data.path"]) == ("indexed", path)
    assert values["data.blend"] == blend


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.activation", "squared-relu"),
        ("model.position_embedding_type", "alibi"),
        ("model.normalization", "other"),
        ("model.window_size", [128, 16]),
        ("model.bias_activation_fusion", False),
        ("model.optim.name", "adam"),
        ("model.optim.sched.name", "SquareAnnealing"),
        ("model.data.data_prefix", ["/data/wiki", "/data/web"]),
        ("trainer.precision", 16),
        ("trainer.devices", -1),
        ("trainer.limit_val_batches", 0.5),
        ("trainer.val_check_interval", 0.25),
        ("trainer.max_steps", "many"),
    ],
)
def test_what_this_program_cannot_compute_is_unsupported(key, value):
    kind = {"model.data.data_impl": "mmap"} if key.endswith("prefix") else {}
    assert {*read_nemo(GPT | kind | {key: value}).unsupported} == {key}


ODD = (0, -1, 0.5, 10**30, math.inf, math.nan, "a", "", None, True, [], [1], ["a", 2], [{"x": 1}])


@pytest.mark.parametrize("name", ["GPT", *FILES])
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_a_value_of_any_kind_is_read_or_named(name, value):
    leaves = (
        leaves_of(name)
        if name in FILES
        else GPT | {"model.optim.sched.name": "InverseSquareRootAnnealing"}
    )
    further = [] if name == "export" else [*DEFAULTS, "model.optim.sched.warmup_steps"]
    for key in {*leaves, *further}:
        run = read_nemo(leaves | {key: value})
        named = {*run.unchanged, *run.unsupported}
        decided = {
            word for one in (*run.settings.values(), *run.options.values()) for word in one.keys
        }
        assert key in named | decided
