"""How MaxText's words for samples per device and for a ramp are translated into our keys."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rampcli import llm
from rampcli.config.compose import apply_overrides, compose
from rampcli.config.layers import Layer, Precedence, build_config
from rampcli.errors import ErrorReport, UsageError
from rampcli.launch.files import read_files
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import leaves
from remedies import offers
from tests.config.overrides import RAMP, refusal_of, resolved_with, words


@pytest.fixture(scope="session")
def llama():
    """One node of eight devices, context parallel 2, and 512 samples per step without a ramp."""
    return llm.llama3_8b.pretrain_recipe()


def by_hand(**values):
    """Returns a configuration whose values were all set in Python."""
    return build_config(
        {key.replace("__", "."): value for key, value in values.items()}, place="Python"
    )


@given(
    nodes=st.integers(1, 6),
    devices=st.integers(1, 8),
    context=st.sampled_from([1, 2, 4]),
    parts=st.integers(1, 40),
    accumulate=st.none() | st.integers(1, 5),
)
def test_samples_per_device_give_the_global_batch_and_the_micro_batch_of_a_rank(
    nodes, devices, context, parts, accumulate
):
    assume(nodes * devices % context == 0)
    per_device = Fraction(parts, context)
    resolved = resolve(
        by_hand(
            per_device_batch_size=float(per_device),
            gradient_accumulation_steps=accumulate,
            trainer__num_nodes=nodes,
            trainer__devices=devices,
            parallel__context_parallel_size=context,
            rampup__node_policy="fixed",
        )
    )
    assert resolved.config.model.global_batch_size == nodes * devices * per_device * (
        accumulate or 1
    )
    assert resolved.config.data.micro_batch_size == per_device * context
    (stage,) = resolved.plan.stages
    assert stage.accumulate_grad_batches == (accumulate or 1)


@pytest.mark.parametrize(
    ("nodes", "devices", "context", "per_device"),
    [(1, 8, 1, 0.3), (1, 4, 4, 1.1), (3, 4, 2, 2.26), (1, 1, 1, 0.01), (5, 2, 1, 1.25)],
)
def test_a_fraction_of_a_sample_is_refused_and_each_size_that_is_offered_works(
    nodes, devices, context, per_device
):
    world = nodes * devices
    fleet = {
        "trainer__num_nodes": nodes,
        "trainer__devices": devices,
        "parallel__context_parallel_size": context,
    }
    refusal = refusal_of(by_hand(per_device_batch_size=per_device, **fleet))
    assert f"x {world} devices is " in refusal.message
    assert refusal.set_by[0] == f"per_device_batch_size={per_device} (Python)"
    sizes = [float(offer["per_device_batch_size"]) for offer in offers(refusal)]
    assert sizes == sorted(sizes)
    assert sizes[-1] > per_device
    for size in sizes:
        resolved = resolve(by_hand(per_device_batch_size=size, **fleet))
        assert resolved.config.model.global_batch_size == size * world


def test_samples_per_device_replace_a_batch_from_conf_with_a_note(llama, line_of):
    resolved = resolved_with(llama, "per_device_batch_size=4")
    assert (resolved.config.model.global_batch_size, resolved.config.data.micro_batch_size) == (
        32,
        8,
    )
    line = line_of("conf/batch/nemo_llama.yaml", "global_batch_size: 512")
    (note,) = resolved.notes
    assert note == (
        "per_device_batch_size=4 x 8 devices = 32 samples replaces model.global_batch_size=512"
        f" (batch/nemo_llama.yaml:{line})"
    )


@pytest.mark.parametrize(
    "accumulation", ["gradient_accumulation_steps", "trainer.accumulate_grad_batches"]
)
def test_a_note_names_the_accumulation_in_the_word_that_was_typed(llama, accumulation):
    (note, *_) = resolved_with(llama, "per_device_batch_size=2", f"{accumulation}=4").notes
    factors, _, _ = note.partition(" = ")
    assert factors == f"per_device_batch_size=2 x 8 devices x {accumulation}=4"


def test_samples_per_device_that_give_the_same_batch_cause_no_note(composed):
    resolved = resolved_with(composed, "per_device_batch_size=16")
    assert resolved.config.model.global_batch_size == 2048
    assert resolved.notes == ()


def test_a_batch_given_beside_samples_per_device_is_reached_by_accumulation(llama):
    resolved = resolved_with(llama, "per_device_batch_size=4", "model.global_batch_size=64")
    assert resolved.config.model.global_batch_size == 64
    assert [stage.accumulate_grad_batches for stage in resolved.plan.stages] == [2]
    assert resolved.notes == ()


def test_a_micro_batch_given_beside_samples_per_device_is_kept(llama):
    resolved = resolved_with(llama, "per_device_batch_size=4", "data.micro_batch_size=2")
    assert [
        (stage.micro_batch_size, stage.accumulate_grad_batches) for stage in resolved.plan.stages
    ] == [(2, 4)]


def test_samples_per_device_of_a_recipe_decide_a_micro_batch_that_the_user_leaves_open():
    recipe = compose("model=llama3_tiny", "trainer.max_steps=1", "per_device_batch_size=4")
    resolved = resolved_with(recipe, "data.micro_batch_size=null")
    assert resolved.plan.stages[0].micro_batch_size == 4


def test_samples_per_device_are_multiplied_by_a_given_accumulation(llama):
    spelt = resolved_with(llama, "per_device_batch_size=4", "gradient_accumulation_steps=8")
    assert spelt.config.model.global_batch_size == 256
    assert dict(leaves(spelt.config)) == dict(
        leaves(
            resolved_with(
                llama, "per_device_batch_size=4", "trainer.accumulate_grad_batches=8"
            ).config
        )
    )


@given(micro=st.integers(1, 8), accumulate=st.integers(1, 8), nodes=st.integers(1, 4))
def test_accumulation_alone_replaces_the_batch_of_a_recipe(llama, micro, accumulate, nodes):
    steps = f"gradient_accumulation_steps={accumulate}"
    typed = (steps, f"data.micro_batch_size={micro}", f"trainer.num_nodes={nodes}")
    resolved = resolved_with(llama, *typed)
    batch = micro * nodes * 4 * accumulate
    (stage,) = resolved.plan.stages
    assert (stage.global_batch_size, stage.micro_batch_size) == (batch, micro)
    assert stage.accumulate_grad_batches == accumulate
    factors = f"{steps} x data.micro_batch_size={micro} x {nodes * 4} data-parallel ranks"
    assert [note.partition(" replaces ")[0] for note in resolved.notes] == (
        [] if batch == 512 else [f"{factors} = {batch} samples"]
    )


def test_the_note_names_the_place_of_a_recipes_spelling_of_the_batch():
    recipe = compose("batch=nemo_gpt3", "data.global_batch_size=4096")
    note, *_ = resolved_with(recipe, "gradient_accumulation_steps=2").notes
    _, _, replaced = note.partition(" replaces ")
    assert replaced.startswith("model.global_batch_size=4096 (data.global_batch_size=4096 (config/")


def test_a_batch_given_beside_accumulation_must_be_the_product(llama):
    typed = ["gradient_accumulation_steps=2", "data.micro_batch_size=4"]
    assert resolved_with(llama, *typed, "model.global_batch_size=32").notes == ()
    refusal = refusal_of(apply_overrides(llama, [*typed, "model.global_batch_size=64"]))
    assert offers(refusal) == [
        {"model.global_batch_size": 32},
        {"gradient_accumulation_steps": 4},
        {"data.micro_batch_size": 8},
    ]


def test_accumulation_beside_a_derived_micro_batch_keeps_the_batch(llama):
    resolved = resolved_with(llama, "gradient_accumulation_steps=2", "data.micro_batch_size=null")
    (stage,) = resolved.plan.stages
    assert (stage.global_batch_size, stage.micro_batch_size, resolved.notes) == (512, 64, ())


def test_accumulation_beside_a_step_schedule_does_not_replace_its_last_size(llama):
    schedule = "model.step_batch_size_schedule='0:256 1B:512'"
    resolved = resolved_with(llama, schedule, "gradient_accumulation_steps=128")
    assert (resolved.plan.global_batch_size, resolved.notes) == (512, ())


def test_nemos_key_for_accumulation_does_not_replace_a_batch(llama):
    refusal = refusal_of(apply_overrides(llama, ["trainer.accumulate_grad_batches=2"]))
    assert "= 8, but model.global_batch_size=512" in refusal.message


def test_an_accumulation_below_one_is_refused_once(llama):
    refusal = refusal_of(apply_overrides(llama, ["gradient_accumulation_steps=0"]))
    assert refusal.keys == ("trainer.accumulate_grad_batches",)


def test_a_pipeline_in_maxtexts_words_gets_maxtexts_default_microbatches(composed):
    typed = ("per_device_batch_size=4", "parallel.pipeline_parallel_size=2")
    assert resolved_with(composed, *typed).config.parallel.num_pipeline_microbatches == 2
    assert (
        resolved_with(
            composed, *typed, "num_pipeline_microbatches=4"
        ).config.parallel.num_pipeline_microbatches
        == 4
    )
    assert (
        resolved_with(
            composed, "parallel.pipeline_parallel_size=2"
        ).config.parallel.num_pipeline_microbatches
        is None
    )


def test_maxtexts_words_for_a_ramp_set_the_ramp(composed):
    resolved = resolved_with(composed, *words(RAMP))
    model, rampup = resolved.config.model, resolved.config.rampup
    assert (model.global_batch_size, model.rampup_batch_size) == (2048, [512, 256, 500])
    assert (rampup.semantics, rampup.node_policy) == ("maxtext", "fixed")
    sizes = range(512, 2049, 256)
    assert [
        (stage.global_batch_size, stage.num_nodes, stage.micro_batch_size)
        for stage in resolved.plan.stages
    ] == [(size, 16, size // 128) for size in sizes]
    assert [stage.steps for stage in resolved.plan.stages[:-1]] == [
        1
    ] * 6  # a stage has 500 / 6 samples, fewer than one step takes
    assert resolved.notes == ()


def test_a_ramp_in_maxtexts_words_equals_the_ramp_in_canonical_keys(composed):
    ours = [
        "model.rampup_batch_size=[512,256,500]",
        "rampup.semantics=maxtext",
        "rampup.node_policy=fixed",
        "rampup.micro_batch=largest",
        "data.micro_batch_size=16",
    ]
    assert dict(leaves(resolved_with(composed, *words(RAMP)).config)) == dict(
        leaves(resolved_with(composed, *ours).config)
    )


def test_the_target_of_maxtexts_ramp_may_be_given_in_samples_by_a_file(composed):
    without = {word: value for word, value in RAMP.items() if word != "per_device_batch_size"}
    assert dict(leaves(resolved_with(composed, *words(without)).config)) == dict(
        leaves(resolved_with(composed, *words(RAMP)).config)
    )


def test_maxtexts_word_disables_the_ramp_of_a_recipe(composed, gpt3_5b_place):
    config = resolved_with(composed, "enable_rampup_batch_size=false").config
    assert config.model.rampup_batch_size is None
    assert (
        config.stack.entry("model.rampup_batch_size").place
        == "enable_rampup_batch_size=false (command line)"
    )
    assert config.stack.history("model.rampup_batch_size")[-2].place == gpt3_5b_place


@pytest.mark.parametrize(
    "key",
    [
        "rampup.semantics=megatron",
        "rampup.node_policy=best",
        "rampup.micro_batch=fixed",
        "data.micro_batch_size=1",
    ],
)
def test_typed_settings_override_the_defaults_of_maxtexts_ramp(composed, key):
    config = resolved_with(composed, *words(RAMP), key).config
    name, _, value = key.partition("=")
    assert str(dict(leaves(config))[name]) == value
    assert config.stack.entry(name).place == "command line"


def test_a_ramp_with_a_fixed_micro_batch_has_the_largest_that_divides_every_batch(composed):
    plan = resolved_with(composed, *words(RAMP), "rampup.micro_batch=fixed").plan
    assert {stage.micro_batch_size for stage in plan.stages} == {2}
    assert plan.stages[-1].accumulate_grad_batches == 8


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            "model.rampup_batch_size=[256,256,10M]",
            "enable_rampup_batch_size=true sets model.rampup_batch_size=[512,256,500], but"
            " [256,256,10000000] is given",
        ),
        (
            "model.global_batch_size=4096",
            "per_device_batch_size=16.0 sets model.global_batch_size=2048, but 4096 is given",
        ),
    ],
)
def test_two_different_ramps_are_refused(composed, typed, message):
    refusal = refusal_of(apply_overrides(composed, [*words(RAMP), typed]))
    assert refusal.message == message
    assert refusal.set_by[0] == f"{message.partition(' ')[0]} (command line)"
    assert refusal.set_by[1].endswith("(command line)")


def test_two_equal_ramps_are_accepted(composed):
    typed = ["model.rampup_batch_size=[512,256,500]", "model.global_batch_size=2048"]
    assert dict(leaves(resolved_with(composed, *words(RAMP), *typed).config)) == dict(
        leaves(resolved_with(composed, *words(RAMP)).config)
    )


@pytest.mark.parametrize("named", ["model.global_batch_size", "data.micro_batch_size"])
@pytest.mark.parametrize("key", ["optim.warmup_samples", "phases.main.optim.warmup_samples"])
@given(parts=st.integers(1, 8), nodes=st.integers(1, 4))
def test_a_reference_names_what_words_decide_as_if_it_were_typed(llama, named, key, parts, nodes):
    base = (f"per_device_batch_size={parts}", f"trainer.num_nodes={nodes}")
    section, _, name = named.partition(".")
    number = getattr(getattr(resolved_with(llama, *base).config, section), name)
    typed = resolved_with(llama, *base, f"{key}={7 * number}")
    referring = resolved_with(llama, *base, f"{key}='${{multiply:7,${{{named}}}}}'")
    assert dict(leaves(referring.config)) == dict(leaves(typed.config))
    assert referring.plan == typed.plan


def test_a_word_follows_from_what_another_word_decides(llama):
    chain = ("per_device_batch_size=${parallel.tensor_parallel_size}", "ici_tensor_parallelism=2")
    typed = ("per_device_batch_size=2", "ici_tensor_parallelism=2")
    assert resolved_with(llama, *chain).plan == resolved_with(llama, *typed).plan


def test_a_word_that_follows_from_what_it_decides_is_refused(llama):
    word = "per_device_batch_size='${multiply:2,${model.global_batch_size}}'"
    with pytest.raises(UsageError, match="depends on itself") as refusal:
        resolved_with(llama, word)
    assert refusal.value.keys == ("per_device_batch_size",)


@pytest.mark.parametrize(
    "optim",
    [
        "optim: {warmup_samples: '${multiply:2,${model.global_batch_size}}'}",
        "optim: {warmup_samples: '${multiply:2,${data.global_batch_size}}'}",
        "optim: {warmup_samples: '${multiply:2,${oc.select:model.global_batch_size,1}}'}",
        "optim: ${mine}\nmine: {warmup_samples: '${multiply:2,${model.global_batch_size}}'}",
    ],
)
@pytest.mark.parametrize(
    ("word", "batch"),
    [
        ("seed=1", 64),
        ("model.global_batch_size=32", 32),
        ("train.global_batch_size=32", 32),
        ("per_device_batch_size=4", 32),
    ],
)
def test_a_reference_names_the_batch_in_each_spelling_that_sets_it(
    llama, optim, word, batch, option
):
    text = f"# @package _global_\ndata: {{global_batch_size: 64}}\n{optim}\n"
    stack = apply_overrides(llama, ["+exp=a", word], config_dir=option("exp/a", text))
    assert resolve(stack).config.optim.warmup_samples == 2 * batch


@pytest.mark.parametrize("word", ["model.rampup_batch_size=null", "~model.rampup_batch_size"])
def test_null_nearer_to_the_user_ends_the_ramp_of_words_and_beside_them_is_refused(llama, word):
    values = RAMP | {"trainer.num_nodes": 16}
    file = Layer.of("exp.yaml", Precedence.CHOSEN, values, report=ErrorReport())
    layers = apply_overrides(llama, []).above(file)
    assert len(resolve(layers).plan.stages) > 1
    (stage,) = resolve(apply_overrides(layers, [word])).plan.stages
    assert stage.global_batch_size == 2048
    with pytest.raises(UsageError, match="rampup_batch_size=null is given"):
        resolved_with(llama, *words(values), "model.rampup_batch_size=null")


def test_a_reference_to_what_files_decide_is_refused_until_it_is_set(tiny_with_files):
    words = ("optim.warmup_samples=${model.vocab_size}", "optim.warmup_steps=null")
    with pytest.raises(UsageError, match="which the files of the run decide") as refusal:
        tiny_with_files(*words)
    (remedy,) = refusal.value.remedies
    assert tiny_with_files(*words, str(remedy)).config.optim.warmup_samples == 256


@pytest.fixture
def tiny_with_files():
    recipe = llm.llama3_tiny.pretrain_recipe()
    return lambda *typed: resolve(apply_overrides(recipe, typed), read_files=read_files)
