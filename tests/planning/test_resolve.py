import copy
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import settings as run
from hypothesis import strategies as st

from prompts import PROMPTS
from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.config.layers import sources_named
from rampcli.config.values import put
from rampcli.errors import ErrorReport, UsageError, UsageErrors, shown
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import leaves, settings
from rampcli.settings.config import Config
from rampcli.words import SPELLINGS

INTEGERS = [key for key, setting in settings().items() if setting.type is int]


def refusal_of(config):
    with pytest.raises(UsageError) as refusal:
        resolve(config)
    return refusal.value


def refusal_or_none(config):
    try:
        resolve(config)
    except UsageError as refusal:
        return refusal
    return None


def smallest():
    config = Config()
    config.model.global_batch_size, config.data.micro_batch_size = 16, 4
    return config


def test_resolving_does_not_change_its_input(recipe):
    recipe.model.global_batch_size = 4096
    before = copy.deepcopy(recipe)
    resolve(recipe)
    assert recipe == before


@pytest.mark.parametrize(
    "words", [["data.global_batch_size=4096"], ["per_device_batch_size=4"], ["seed=1"]]
)
def test_resolving_twice_equals_resolving_once(recipe, words):
    recipe.trainer.max_samples = 10
    once = resolve(apply_overrides(recipe, words))
    twice = resolve(once.config)
    assert twice.config == once.config
    assert twice.plan == once.plan


def test_a_configuration_built_in_python_resolves():
    plan = resolve(smallest()).plan
    assert [
        (stage.global_batch_size, stage.accumulate_grad_batches, stage.steps)
        for stage in plan.stages
    ] == [(16, 4, None)]


SPELT = {
    "data.global_batch_size": {"model.global_batch_size": 24},
    "data.rampup_batch_size": {"model.rampup_batch_size": [8, 8, 64]},
    "model.micro_batch_size": {"data.micro_batch_size": 2},
    "model.tensor_model_parallel_size": {"parallel.tensor_parallel_size": 2},
    "model.pipeline_model_parallel_size": {"parallel.pipeline_parallel_size": 2},
    "model.context_parallel_size": {"parallel.context_parallel_size": 2},
    "trainer.strategy.tensor_model_parallel_size": {"parallel.tensor_parallel_size": 2},
    "trainer.strategy.pipeline_model_parallel_size": {"parallel.pipeline_parallel_size": 2},
    "trainer.strategy.context_parallel_size": {"parallel.context_parallel_size": 2},
    "train.micro_batch_size": {"data.micro_batch_size": 2},
    "train.global_batch_size": {"model.global_batch_size": 24},
    "train.rampup_batch_size": {"model.rampup_batch_size": [8, 8, 64]},
    "train.step_batch_size_schedule": {
        "model.step_batch_size_schedule": "0:8 16K:16",
        "model.global_batch_size": None,
    },
    "train.decrease_batch_size_if_needed": {
        "rampup.decrease_batch_size_if_needed": True,
        "model.global_batch_size": 17,
    },
    "train.train_iters": {"trainer.max_steps": 20},
    "train.train_samples": {"trainer.max_samples": 320, "trainer.max_steps": None},
    "model.seq_length": {"data.sequence_length": 64},
    "dataset.seq_length": {"data.sequence_length": 64},
    "dataset.sequence_length": {"data.sequence_length": 64},
    "scheduler.lr_warmup_iters": {"optim.warmup_steps": 2, "optim.warmup_samples": None},
    "scheduler.lr_warmup_samples": {"optim.warmup_samples": 32, "optim.warmup_steps": None},
    "optimizer.lr": {"optim.lr": 0.002},
    "optimizer.min_lr": {"optim.min_lr": 0.0001},
    "gradient_accumulation_steps": {"trainer.accumulate_grad_batches": 8},
    "hydra.run.dir": {"run_dir": "runs/other"},
    "expansion_factor_real_data": {"data.expansion_factor_real_data": 1.0},
    "num_pipeline_microbatches": {
        "parallel.num_pipeline_microbatches": 2,
        "parallel.pipeline_parallel_size": 2,
        "data.micro_batch_size": 2,
    },
    "rl.prompts_per_step": {
        "model.global_batch_size": 24,
        "rl.generations_per_prompt": 4,
        "data.micro_batch_size": None,
        **PROMPTS,
    },
}
"""By spelling, its canonical key with a value, and the other settings that it needs."""


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("start", ["recipe", "by hand"])
def test_another_systems_spelling_is_equivalent_to_the_canonical_key(recipe, start, spelling):
    plain = recipe if start == "recipe" else Config()
    canonical, *others = SPELT[spelling]
    needed = {
        "model.global_batch_size": 16,
        "data.micro_batch_size": 1,
        "trainer.num_nodes": 1,
        "trainer.devices": 2,
        "model.rampup_batch_size": None,
    } | {key: SPELT[spelling][key] for key in others}
    for key, number in needed.items():
        if key != canonical:
            put(plain, key, number)
    spelt, spoken = copy.deepcopy(plain), copy.deepcopy(plain)
    word = f"{spelling}={shown(SPELT[spelling][canonical])}"
    spelt = apply_overrides(spelt, [word.replace("0:8 16K:16", "'0:8 16K:16'")])
    put(spoken, canonical, SPELT[spelling][canonical])
    assert SPELLINGS[spelling] == canonical
    assert resolve(spelt) == resolve(spoken)
    assert dict(leaves(resolve(spelt).config))[canonical] == SPELT[spelling][canonical]


def test_a_refusal_says_what_is_wrong_who_set_it_and_what_would_work(
    composed, line_of, gpt3_5b_place
):
    conf = f"batch/nemo_gpt3.yaml:{line_of('conf/batch/nemo_gpt3.yaml', 'micro_batch_size: 4')}"
    assert str(
        refusal_of(
            apply_overrides(
                composed, ["model.global_batch_size=2176", "model.rampup_batch_size=null"]
            )
        )
    ) == (
        "error: model.global_batch_size=2176 does not divide into data.micro_batch_size=4 x 128"
        " data-parallel ranks = 512\n       set by: model.global_batch_size=2176 (command line),"
        f" data.micro_batch_size ({conf}), trainer.num_nodes ({gpt3_5b_place}), trainer.devices"
        f" ({gpt3_5b_place})\n       try:    model.global_batch_size=2048 or 2560, or"
        " data.micro_batch_size=1, or rampup.node_policy=best"
    )


def test_a_refused_spelling_is_placed_where_it_was_set(recipe):
    recipe.model.rampup_batch_size = None
    stack = apply_overrides(recipe, ["data.global_batch_size=100"])
    assert refusal_of(stack).set_by[0] == "data.global_batch_size=100 (command line)"
    recipe.data.global_batch_size = 100
    assert refusal_of(recipe).set_by[0] == "data.global_batch_size=100 (Python)"


@pytest.mark.parametrize("end", ["max_samples", "max_tokens"])
def test_an_end_on_the_command_line_replaces_an_end_from_conf_in_another_unit(
    composed, recipe, end
):
    assert composed.trainer.max_steps == 75_000
    setattr(recipe.trainer, end, 640)
    for config in (recipe, apply_overrides(composed, [f"trainer.{end}=640"]).config()):
        trainer = resolve(config).config.trainer
        assert (getattr(trainer, end), trainer.max_steps) == (640, None)


def test_an_end_on_the_command_line_replaces_an_end_assigned_by_the_recipe(recipe):
    recipe.trainer.max_samples = 10
    trainer = resolve(apply_overrides(recipe, ["trainer.max_tokens=640"])).config.trainer
    assert (trainer.max_steps, trainer.max_samples, trainer.max_tokens) == (None, None, 640)


def test_setting_the_end_to_null_gives_a_run_without_end(recipe):
    recipe.trainer.max_steps = None
    assert resolve(recipe).plan.end_sample is None


@run(max_examples=20)
@given(changes=st.dictionaries(st.sampled_from(INTEGERS), st.integers(1, 9), max_size=4))
@example(changes={"seed": 2**100})
@example(changes={"model.num_query_groups": 9})
def test_any_integers_are_planned_or_refused_with_their_key_and_place(changes):
    config = smallest()
    for key, value in changes.items():
        put(config, key, value)
    refusal = refusal_or_none(config)
    for error in [] if refusal is None else getattr(refusal, "errors", [refusal]):
        assert error.keys
        assert error.set_by


def test_values_assigned_in_python_are_read_like_those_of_the_command_line():
    config = smallest()
    config.trainer.max_tokens, config.model.rampup_batch_size = "2M", [4, 4, "1K"]
    resolved = resolve(config).config
    assert (resolved.trainer.max_tokens, resolved.model.rampup_batch_size) == (
        2_000_000,
        [4, 4, 1000],
    )


def test_a_run_directory_defaults_to_the_name_of_the_run():
    config = smallest()
    config.name = "first"
    assert resolve(config).run_dir == Path("runs/first")
    config.run_dir = "/elsewhere"
    assert resolve(config).run_dir == Path("/elsewhere")


@pytest.mark.parametrize("warmup", ["samples", "steps"])
def test_a_note_tells_that_the_run_ends_within_its_warm_up(warmup):
    config = smallest()
    config.trainer.max_steps = 5
    setattr(config.optim, f"warmup_{warmup}", 5 if warmup == "steps" else 80)
    assert resolve(config).notes == ()
    config.trainer.max_steps = 4
    (note,) = resolve(config).notes
    assert "after 64 samples, within its warm-up of 80" in note
    assert f"optim.warmup_{warmup}" in note


@pytest.mark.parametrize("decay", ["linear", "cosine", "quarter_cosine", "wsd"])
def test_no_step_that_changes_nothing_is_planned_without_a_note(decay):
    config = smallest()
    config.schedule.decay_style, config.optim.lr = decay, 0.5
    for config.trainer.max_steps in (1, 7):
        config.optim.min_lr = 0.0
        (note,) = resolve(config).notes
        assert note.startswith("the last step has a learning rate of 0 and changes nothing")
        config.optim.min_lr = float(note.partition("optim.min_lr=")[2].split()[0])
        assert resolve(config).notes == ()
    config.optim.lr = config.optim.min_lr = 0.0
    assert resolve(config).notes == ("optim.lr=0: no step changes a weight",)


def test_all_errors_are_reported_at_once_with_their_places(composed, gpt3_5b_place):
    with pytest.raises(UsageErrors) as refused:
        resolve(
            apply_overrides(
                composed,
                ["seed=-1", "optim.min_lr=5", "trainer.max_steps=1", "trainer.max_samples=2"],
            )
        )
    assert [error.set_by for error in refused.value.errors] == [
        ("seed=-1 (command line)",),
        ("optim.min_lr=5.0 (command line)", f"optim.lr ({gpt3_5b_place})"),
        ("trainer.max_steps=1 (command line)", "trainer.max_samples=2 (command line)"),
    ]
    assert refused.value.exit_code == 2


def test_earlier_errors_are_raised_with_new_ones_and_their_keys_not_checked_again(composed):
    report = ErrorReport()
    report.errors.append(UsageError("seen before", keys=("model.global_batch_size",)))
    with pytest.raises(UsageErrors) as refused:
        resolve(
            apply_overrides(composed, ["model.global_batch_size=100", "seed=-1"]), report=report
        )
    assert [error.message for error in refused.value.errors] == [
        "seen before",
        "seed=-1 is below 0",
    ]


def test_a_wrong_type_assigned_in_python_is_reported_once(recipe):
    recipe.seed, recipe.optim.lr = "many", "fast"
    with pytest.raises(UsageErrors) as refused:
        resolve(recipe)
    assert [error.message for error in refused.value.errors] == [
        "seed=many is not an integer",
        "optim.lr=fast is not a number",
    ]
    assert [error.set_by for error in refused.value.errors] == [
        ("seed=many (Python)",),
        ("optim.lr=fast (Python)",),
    ]


def test_finished_stages_are_not_checked_and_remaining_ones_are(composed):
    awkward = apply_overrides(
        composed, ["rampup.node_policy=fixed", "model.rampup_batch_size=[256,1792,10M]"]
    ).config()
    assert "256 (stage 0)" in refusal_of(awkward).message
    asked = []

    def consumed(path):
        asked.append(path)
        return 10_000_128

    resolved = resolve(awkward, consumed_samples_in=consumed)
    assert asked == [Path("runs/gpt3_5b")]
    assert [stage.stage for stage in resolved.plan.stages] == [1]
    assert [stage.global_batch_size for stage in resolved.plan.passed] == [256]


def test_an_invalid_run_directory_is_not_read(composed):
    def consumed(path):
        raise AssertionError(path)

    with pytest.raises(UsageError) as refused:
        resolve(apply_overrides(composed, ["name=a/b"]), consumed_samples_in=consumed)
    assert refused.value.keys == ("name",)


def test_an_error_after_resolving_says_where_values_came_from(composed):
    config = resolve(apply_overrides(composed, ["trainer.num_nodes=8"])).config
    with pytest.raises(UsageError) as refused, sources_named(config):
        raise UsageError("too few", keys=("trainer.num_nodes", "seed"))
    assert refused.value.set_by == ("trainer.num_nodes=8 (command line)", "seed=1234 (default)")


@pytest.mark.parametrize(("first", "notes"), [(2, 0), (3, 1)])
def test_a_run_that_ends_before_the_steps_to_profile_has_a_note(first, notes):
    words = ["model.rampup_batch_size=null", "model.global_batch_size=8", "trainer.max_samples=16"]
    config = apply_overrides(
        llm.from_factory("llama3_tiny"), [*words, f"profile.steps=[{first},9]"]
    )
    found = [note for note in resolve(config).notes if "profile.steps" in note]
    assert found == [f"the run ends after 2 steps, before profile.steps=[{first},9]"][:notes]


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        ("trainer.accelerator=gpu", 1),
        ("trainer.accelerator=auto", 1),
        ("trainer.accelerator=cpu", 0),
        ("trainer.accelerator=gpu trainer.precision=bf16", 0),
        ("trainer.accelerator=gpu trainer.matmul_precision=high", 0),
    ],
)
def test_fp32_that_leaves_tensor_cores_idle_is_noted(words, notes, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    stack = apply_overrides(llm.from_factory("llama3_tiny"), words.split())
    assert len([note for note in resolve(stack).notes if "tensor cores" in note]) == notes


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        (
            "model.head_size=8 data.document_mask=true",
            ["the mask of a sample takes 16MiB on a GPU"],
        ),
        ("model.head_size=8 model.sliding_window=7 trainer.precision=bf16", ["takes 8MiB on"]),
        ("model.head_size=8", []),
        ("model.head_size=16 data.document_mask=true", []),
        ("model.head_size=8 data.document_mask=true trainer.accelerator=cpu", []),
    ],
)
def test_a_mask_with_a_number_for_each_pair_of_tokens_is_noted(words, notes):
    words = ["data.sequence_length=2048", *words.split()]
    stack = apply_overrides(llm.from_factory("llama3_tiny"), words)
    found = [note for note in resolve(stack).notes if "flex attention" in note]
    assert len(found) == len(notes)
    assert all(one in note for one, note in zip(notes, found, strict=True))


def test_a_node_policy_that_takes_a_tenth_longer_than_the_best_is_noted():
    def notes_of(*words):
        ramp = "model.rampup_batch_size=[256,224,10M]"
        stack = apply_overrides(llm.from_factory("gpt3_5b"), [ramp, *words])
        resolved = resolve(stack)
        return resolved.plan, [note for note in resolved.notes if "node_policy" in note]

    plan, (note,) = notes_of()
    best, none = notes_of("rampup.node_policy=best")
    assert none == []
    assert best.run_s() < 0.9 * plan.run_s()
    hours = [f"{seconds / 3600:.3g}" for seconds in (best.run_s(), plan.run_s())]
    assert note.startswith(
        f"rampup.node_policy=best would take {hours[0]} hours instead of {hours[1]}"
    )
    assert notes_of("throughput.mfu=null", "trainer.peak_tflops=null")[1] == []
    slow, none = notes_of("rampup.nodes=[1,1,1,1,1,1,1,1,16]")
    assert none == []
    assert slow.run_s() > plan.run_s()
