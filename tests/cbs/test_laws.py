import pytest

from rampcli.cbs.laws import BATCH_LAWS, NANOCHAT_REFERENCE_TOKENS

LAWS = {law.name: law for law in BATCH_LAWS}


@pytest.mark.parametrize(
    ("name", "tokens", "batch"),
    [
        ("Power Lines", 40e9, 720_511),  # "40B tokens" give 0.72M tokens
        ("Step Law", 100e9, 1_107_715),
        ("nanochat", NANOCHAT_REFERENCE_TOKENS, 2**19),
    ],
)
def test_a_law_gives_the_batch_of_its_source(name, tokens, batch):
    assert LAWS[name].batch_tokens(tokens) == pytest.approx(batch, rel=1e-5)


@pytest.mark.parametrize("law", BATCH_LAWS, ids=lambda law: law.name)
def test_longer_runs_have_larger_batches(law):
    batches = [law.batch_tokens(10.0**power) for power in range(6, 14)]
    assert batches == sorted(batches)
    assert law.batch_tokens(2e9) < 2 * law.batch_tokens(1e9)  # but more steps


def test_a_law_says_in_what_a_run_differs_from_its_fit():
    law = LAWS["Step Law"]
    assert law.misfits(parameters=100_000_000, tokens=3_000_000_000, optimizer="adamw") == []
    assert law.misfits(parameters=743_000, tokens=1_000_000, optimizer="muon") == [
        "fitted with adamw",
        "fitted on 60M to 1B parameters",
        "fitted on 2B to 100B tokens",
    ]
