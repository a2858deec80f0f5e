from dataclasses import replace

import pytest

from models.families import FAMILIES
from rampcli import llm
from rampcli.config.snapshot import identity
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve
from rampcli.settings.architectures import export_notes, model_type, types_of
from rampcli.settings.config import Config

UNEVEN = replace(FAMILIES["llama3"], hidden_size=50, head_size=4, num_attention_heads=3)


def test_llama_is_the_usual_class_and_mistral_computes_the_same_without_biases():
    assert types_of(FAMILIES["llama3"]) == ("llama", "mistral")
    assert types_of(FAMILIES["llama with biases"]) == ("llama",)
    assert types_of(FAMILIES["mistral"]) == ("mistral",)


def test_a_width_that_is_no_multiple_of_the_heads_is_left_to_a_class_that_takes_it():
    """Llama's class in transformers refuses it."""
    assert types_of(UNEVEN) == ("mistral",)
    assert types_of(replace(UNEVEN, qk_norm=True)) == ("qwen3",)
    assert types_of(replace(UNEVEN, bias=True)) == ()


@pytest.mark.parametrize(
    "model",
    [
        replace(UNEVEN, bias=True),
        replace(FAMILIES["qwen3"], sliding_window=7),
        replace(FAMILIES["gpt3"], bias=False),
        replace(FAMILIES["gpt3"], head_size=8),
        replace(FAMILIES["llama3"], position_embedding="learned"),
    ],
)
def test_a_plan_says_that_a_model_cannot_be_exported_before_it_is_trained(model):
    with pytest.raises(UsageError, match="transformers has no class"):
        model_type(model)
    (note,) = export_notes(Config(model=model))
    assert note.startswith("rampcli export will refuse this model")


def test_the_note_is_in_the_plan_of_the_run_and_other_plans_have_none():
    for bias, notes in ((True, 1), (False, 0)):
        recipe = llm.llama3_tiny.pretrain_recipe()
        recipe.model.hidden_size, recipe.model.head_size, recipe.model.bias = 126, 8, bias
        found = [note for note in resolve(recipe).notes if "rampcli export" in note]
        assert len(found) == notes


def test_a_resume_may_change_the_class_that_is_exported():
    config = Config()
    before = identity(config)
    config.model.huggingface_type = "mistral"
    assert identity(config) == before


@pytest.mark.parametrize("wanted", ["llama", "mistral"])
def test_a_class_that_does_not_compute_the_model_is_refused(wanted):
    model = FAMILIES["mistral" if wanted == "llama" else "llama with biases"]
    with pytest.raises(UsageError) as refused:
        model_type(replace(model, huggingface_type=wanted))
    assert refused.value.keys[0] == "model.huggingface_type"
    assert refused.value.remedy.startswith("model.huggingface_type=null")
    assert model_type(replace(FAMILIES["llama3"], huggingface_type=wanted)) == wanted
