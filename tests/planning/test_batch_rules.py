"""Settings that are tied to the batch, for a batch that is not the recipe's."""

from math import log, sqrt

import pytest

from rampcli.cli.base import Base
from rampcli.cli.composing import compose_beside_recipe
from rampcli.config import snapshot
from rampcli.config.layers import stack_of
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve

TWICE = "model.global_batch_size=1024"


def composed(recipe, *words, retunes=False):
    return compose_beside_recipe(Base(factory=recipe), words, retunes=retunes)


def settings_of(resolved):
    return {one.key: one for retuning in resolved.retunings for one in retuning.settings}


def states(resolved):
    return {one.state for one in settings_of(resolved).values()}


def words_of(resolved):
    return [word for retuning in resolved.retunings for word in retuning.words()]


@pytest.mark.parametrize("batch", [64, 256, 1024, 4096])
def test_retuning_keeps_the_time_scales_in_samples_and_scales_the_rate_with_the_root(batch):
    recipe = composed("llama3_8b")
    run = composed("llama3_8b", f"model.global_batch_size={batch}", retunes=True)
    k, before, after = batch / 512, recipe.config.optim, run.config.optim
    assert after.lr / before.lr == pytest.approx(sqrt(k), rel=1e-3)
    assert after.min_lr / before.min_lr == pytest.approx(sqrt(k), rel=1e-3)
    assert log(after.beta2) / log(before.beta2) == pytest.approx(k, rel=1e-3)
    pull = after.lr * after.weight_decay / (before.lr * before.weight_decay)
    assert pull == pytest.approx(k, rel=1e-3)
    assert run.phases[0].rate.warmup_samples == recipe.phases[0].rate.warmup_samples
    assert run.retunings[0].factor == k


def test_nothing_changes_unless_it_is_asked_for():
    run = composed("llama3_8b", TWICE)
    assert run.config.optim == composed("llama3_8b").config.optim
    assert states(run) == {"proposed"}
    assert "--retune would adapt" in run.retunings[0].lines()[0]


def test_the_words_that_are_shown_do_what_retune_does():
    words = words_of(composed("llama3_8b", TWICE))
    typed = composed("llama3_8b", TWICE, *words)
    assert typed.config.optim == composed("llama3_8b", TWICE, retunes=True).config.optim
    assert states(typed) == {"kept"}


def test_what_is_retuned_says_so_and_is_not_retuned_again():
    run = composed("llama3_8b", TWICE, retunes=True)
    assert words_of(run) == []
    assert states(run) == {"applied"}
    places = [stack_of(run.config).entry(key).place for key in ("optim.lr", "optim.warmup_steps")]
    assert places == ["--retune", "--retune"]
    assert "optim.lr: --retune" in snapshot.to_yaml(run.config)
    assert composed("llama3_8b", TWICE, retunes=True).config == run.config
    assert resolve(run.config).config.optim == run.config.optim


def test_settings_that_the_user_set_stay_and_the_weight_decay_stays_with_the_rate():
    words = (TWICE, "optim.lr=1e-4", "optim.warmup_samples=100")
    run = composed("llama3_8b", *words, retunes=True)
    assert (run.config.optim.lr, run.config.optim.warmup_samples) == (1e-4, 100)
    assert (run.config.optim.min_lr, run.config.optim.weight_decay) == (3e-5, 0.1)
    found = settings_of(run)
    assert found["optim.lr"].state == found["optim.warmup_steps"].state == "kept"
    assert found["optim.weight_decay"].state == "unknown"
    assert "optim.lr stays as well" in str(found["optim.weight_decay"])
    assert "stays 0.0001 (command line); the rule gives 0.0004243" in str(found["optim.lr"])


def test_a_rate_that_the_user_set_to_what_the_rule_gives_takes_the_weight_decay_along():
    run = composed("llama3_8b", TWICE, "optim.lr=0.0004243", retunes=True)
    assert run.config.optim.weight_decay == 0.1414


def test_a_learning_rate_of_zero_has_no_weight_decay_to_follow_it():
    run = composed("llama3_8b", TWICE, "optim.lr=0", "optim.min_lr=0", retunes=True)
    assert run.config.optim.weight_decay == 0.1
    assert settings_of(run)["optim.weight_decay"].value is None


@pytest.mark.parametrize("coupling", ["none", "linear"])
@pytest.mark.parametrize(
    ("recipe", "optimizer", "batch"), [("llama3_tiny", "adamw", 32), ("llama3_8b", "muon", 1024)]
)
def test_the_rate_of_another_optimizer_stays_and_what_hangs_on_it(
    recipe, optimizer, batch, coupling
):
    words = (f"optim.optimizer={optimizer}", f"model.global_batch_size={batch}")
    run = composed(recipe, *words, f"schedule.batch_coupling={coupling}", retunes=True)
    before, found = composed(recipe).config.optim, settings_of(run)
    for name in ("lr", "min_lr", "weight_decay"):
        assert getattr(run.config.optim, name) == getattr(before, name)
    assert {found[key].state for key in ("optim.lr", "optim.weight_decay")} == {"unknown"}
    assert f"the recipe's rate is one for {before.optimizer}" in str(found["optim.lr"])


def test_an_option_that_the_user_chose_counts_as_set():
    run = composed("llama3_8b", TWICE, "optim=llama3_tiny", "optim.optimizer=adamw", retunes=True)
    assert run.config.optim.lr == 6e-3
    assert settings_of(run)["optim.lr"].state == "kept"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["model.rampup_batch_size=[128,128,1M]"],
        ["model.step_batch_size_schedule='samples: 0:128 1M:512'"],
        ["trainer.num_nodes=2", "data.micro_batch_size=2"],
        ["data.sequence_length=4096"],
    ],
    ids=" ".join,
)
def test_nothing_is_said_if_the_batch_at_the_end_is_the_recipes(words):
    assert composed("llama3_8b", *words).retunings == ()
    run = composed("llama3_8b", *words, retunes=True)
    assert run.config.optim == composed("llama3_8b").config.optim
    assert "--retune changes nothing: the batch is the recipe's" in run.notes


@pytest.mark.parametrize(
    "word",
    [
        "data.global_batch_size=1024",
        "per_device_batch_size=128",
        "model.step_batch_size_schedule='samples: 0:128 1M:1024'",
    ],
)
def test_any_way_to_set_the_batch_is_compared(word):
    assert composed("llama3_8b", word).retunings == composed("llama3_8b", TWICE).retunings


def test_a_recipe_of_the_user_is_compared_with_its_own_batch(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from rampcli import llm\n\n\ndef mine():\n"
        "    config = llm.llama3_8b.pretrain_recipe()\n"
        "    config.model.global_batch_size = 1024\n    return config\n"
    )
    assert composed(str(path)).retunings == ()
    assert composed(str(path), "model.global_batch_size=512").retunings[0].factor == 0.5


def test_a_recipe_without_a_batch_has_nothing_to_compare_with(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from rampcli import Config\n\n\ndef mine():\n    return Config()\n")
    words = ("model.global_batch_size=16", "data.micro_batch_size=4", "model.vocab_size=256")
    assert composed(str(path), *words).retunings == ()
    with pytest.raises(UsageError, match="--retune compares with the batch of the recipe"):
        composed(str(path), *words, retunes=True)


def test_a_recipe_without_data_or_model_of_its_own_is_compared():
    words = ("data=stdlib", "model=llama3_tiny", "model.init_from=null", "data.micro_batch_size=1")
    run = composed("fine_tune", *words, "model.global_batch_size=64")
    assert run.retunings[0].recipe_batch == 32


def test_muon_keeps_its_rate_and_weight_decay_and_says_what_is_known():
    word = "model.global_batch_size=32"
    run, recipe = composed("llama3_tiny", word, retunes=True), composed("llama3_tiny")
    for name in ("lr", "min_lr", "weight_decay"):
        assert getattr(run.config.optim, name) == getattr(recipe.config.optim, name)
    assert run.config.optim.beta2 == 0.9025
    known = str(settings_of(run)["optim.lr"])
    assert "2505.02222" in known
    assert "2510.09378" in known
    coupled = composed("llama3_tiny", word, "schedule.batch_coupling=linear", retunes=True)
    assert coupled.config.optim.lr == 0.012


def test_a_coupling_of_the_run_decides_how_the_rate_follows():
    run = composed("llama3_8b", TWICE, "schedule.batch_coupling=linear", retunes=True)
    assert run.config.optim.lr == 6e-4
    assert run.config.optim.weight_decay == 0.1


def test_rules_outside_of_what_their_sources_tested_say_so():
    near, far = (
        settings_of(composed("llama32_1b", f"model.global_batch_size={batch}"))
        for batch in (2048, 4608)
    )
    assert [one.tested for one in near.values()] == [None] * len(near)
    assert far["optim.lr"].tested is not None
    assert far["optim.beta2"].tested is not None
    assert "tested for changes up to 4x" in str(far["optim.lr"])
    large = settings_of(composed("llama3_70b", TWICE))["optim.weight_decay"]
    assert "models of 111M to 3.30B parameters" in str(large)


def test_samples_of_another_length_are_named():
    run = composed("llama3_8b", TWICE, "data.sequence_length=4096")
    assert "whose samples have 8,192 tokens" in run.retunings[0].lines()[0]


def test_no_rule_is_applied_in_reinforcement_learning():
    words = ("rl=grpo", "data.source=pairs", "data.task=sort", "data.document_mask=true")
    assert composed("llama3_tiny", *words).retunings == ()
    with pytest.raises(UsageError, match="rules of --retune are those of pretraining"):
        composed("llama3_tiny", *words, retunes=True)


def test_a_beta2_that_would_average_one_step_stays():
    run = composed("llama3_tiny", "model.global_batch_size=2048", retunes=True)
    found = settings_of(run)["optim.beta2"]
    assert (found.state, run.config.optim.beta2) == ("unknown", 0.95)
    assert "would be 0.0014, an average over one step or so" in str(found)


LONG = ("phases.main.until=1T", "phases.long.until=2T", "phases.long.data.sequence_length=16384")
ANNEAL = ("phases.main.until=1T", "phases.anneal.until=2T", "phases.anneal.optim.lr=1e-4")


def test_phases_without_batches_of_their_own_follow_the_batch_as_a_run_without_phases():
    alone = composed("llama3_8b", TWICE)
    assert composed("llama3_8b", TWICE, *ANNEAL).retunings == alone.retunings
    run = composed("llama3_8b", TWICE, *ANNEAL, retunes=True)
    assert run.config.optim == composed("llama3_8b", TWICE, retunes=True).config.optim
    assert run.phases[1].config.optim.lr == 1e-4


def test_the_batch_of_a_phase_is_compared_in_tokens_if_its_samples_are_longer():
    assert composed("llama3_8b", *LONG, "phases.long.model.global_batch_size=256").retunings == ()
    (found,) = composed("llama3_8b", *LONG).retunings
    assert (found.phase, found.factor) == ("long", 2.0)
    assert found.lines()[0].startswith(
        "batch of phase long: 512 samples, 2x the recipe's 512, whose"
    )


def test_a_phase_with_another_batch_than_the_run_has_settings_of_its_own():
    words = (TWICE, *ANNEAL, "phases.anneal.model.global_batch_size=256")
    run = composed("llama3_8b", *words, retunes=True)
    main, anneal = (phase.config.optim for phase in run.phases)
    assert (main.beta2, anneal.beta2) == (0.9025, 0.97468)
    assert (main.weight_decay, anneal.weight_decay) == (0.1414, 0.1)
    assert (main.lr, anneal.lr) == (4.243e-4, 1e-4)
    assert words_of(run) == []
    proposed = composed("llama3_8b", *words)
    found = settings_of(proposed)
    assert "no rule leads there" in str(found["phases.anneal.optim.lr"])
    assert "keeps the recipe's 0.1" in str(found["phases.anneal.optim.weight_decay"])
    typed = composed("llama3_8b", *words, *words_of(proposed))
    assert [one.config.optim for one in typed.phases] == [main, anneal]


def test_what_the_user_set_for_the_run_or_for_a_phase_stays_in_phases_too():
    batches = [f"phases.{name}.model.global_batch_size=1024" for name in ("main", "anneal")]
    words = (*ANNEAL, *batches, "optim.weight_decay=0.2", "phases.anneal.optim.beta2=0.9")
    run = composed("llama3_8b", *words, retunes=True)
    main, anneal = (phase.config.optim for phase in run.phases)
    assert (main.lr, main.weight_decay, main.beta2) == (4.243e-4, 0.2, 0.9025)
    assert (anneal.weight_decay, anneal.beta2) == (0.2, 0.9)


def test_a_first_phase_with_a_schedule_of_its_own_has_a_rate_of_its_own():
    words = ("phases.main.until=1T", "phases.main.schedule.decay_style=wsd", "phases.next.until=2T")
    batches = ("phases.main.model.global_batch_size=1024", "model.global_batch_size=256")
    run = composed("llama3_8b", *words, *batches, retunes=True)
    assert [phase.config.optim.lr for phase in run.phases] == [4.243e-4, 2.121e-4]
    assert run.phases[0].config.optim.warmup_samples == 2000 * 512
    continuing = ("phases.next.schedule.decay_style=linear",)
    run = composed("llama3_8b", *words, *batches, *continuing, retunes=True)
    assert run.phases[0].config.optim.lr == 4.243e-4


def test_couplings_lead_from_the_largest_batch_of_all_phases():
    batches = ("phases.anneal.model.global_batch_size=2048", "schedule.batch_coupling=sqrt")
    run = composed("llama3_8b", TWICE, *ANNEAL, *batches, retunes=True)
    assert [one.phase for one in run.retunings] == [None]
    assert run.config.optim.lr == 6e-4


def test_a_phase_is_compared_with_the_phase_of_the_recipe(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from rampcli import llm\n\n\ndef mine():\n"
        "    config = llm.llama3_8b.pretrain_recipe()\n"
        '    config.phases = [{"name": "main", "until": "1T"},'
        ' {"name": "late", "until": "2T", "model.global_batch_size": 1024}]\n'
        "    return config\n"
    )
    assert composed(str(path)).retunings == ()
    (found,) = composed(str(path), "phases.late.model.global_batch_size=2048").retunings
    assert (found.phase, found.recipe_batch, found.factor) == ("late", 1024, 2.0)
