import pytest

from rampcli.errors import UsageError
from rampcli.planning.same_batches import in_words, micro_batch_settings

CONSTANT = {"model.rampup_batch_size": "null"}
DERIVED = CONSTANT | {"model.global_batch_size": "null", "data.micro_batch_size": "4"}
OWN_WORDS = [
    {},
    {"rampup.micro_batch": "largest"},
    CONSTANT | {"model.global_batch_size": "16"},
    CONSTANT | {"data.global_batch_size": "16", "model.micro_batch_size": "2"},
    CONSTANT | {"model.global_batch_size": "16", "trainer.accumulate_grad_batches": "4"},
    CONSTANT | {"model.global_batch_size": "16", "gradient_accumulation_steps": "4"},
    DERIVED,
    DERIVED | {"trainer.accumulate_grad_batches": "8"},
    CONSTANT | {"gradient_accumulation_steps": "8"},
    CONSTANT | {"per_device_batch_size": "4"},
    CONSTANT | {"per_device_batch_size": "4", "gradient_accumulation_steps": "4"},
    CONSTANT | {"per_device_batch_size": "4", "trainer.accumulate_grad_batches": "4"},
    {"model.step_batch_size_schedule": "'0:8 50K:16'"},
    {"model.step_batch_size_schedule": "'0:8 50K:16'", "gradient_accumulation_steps": "4"},
]


@pytest.mark.parametrize("own_words", OWN_WORDS)
def test_the_settings_for_a_size_keep_the_batches_and_none_of_them_is_needless(planned, own_words):
    def trained(words):
        """Returns the largest stage's micro batch and all batches, or None if it is refused."""
        try:
            found = planned("llama3_tiny", *(f"{key}={value}" for key, value in words.items()))
        except UsageError:
            return None
        batches = [stage.global_batch_size for stage in found.plan.stages]
        largest = max(found.plan.stages, key=lambda stage: stage.global_batch_size)
        return largest.micro_batch_size, batches

    own_words = own_words | {"trainer.num_nodes": "1"}
    own = planned("llama3_tiny", *(f"{key}={value}" for key, value in own_words.items()))
    _, batches = trained(own_words)
    given, needed = set(), set()
    (phase,) = own.phases
    for size in (1, 2, 4):
        words = dict(
            word.split("=")
            for word in str(in_words(micro_batch_settings(phase, size), phase.config)).split()
        )
        assert trained(own_words | words) == (size, batches)
        for key in words:
            fewer = {other: value for other, value in words.items() if other != key}
            given.add(key)
            if trained(own_words | fewer) != (size, batches):
                needed.add(key)
    assert given == needed
