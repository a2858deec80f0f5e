from dataclasses import replace
from pathlib import Path

import pytest

from built_corpora import left_in
from rampcli.data.building.build import build
from rampcli.data.building.options import LARGEST_BPE, LONGEST_KEY, MOST_WORKERS
from rampcli.errors import UsageError


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer": None}, "--train-bpe is needed"),
        ({"train_bpe": 300}, "exclude each other"),
        ({"tokenizer": None, "train_bpe": 256}, "is below 257"),
        ({"eod": "</s>"}, "is not a token of the tokenizer"),
        ({"tokenizer": "none.json"}, "cannot read"),
        (
            {"tokenizer": None, "train_bpe": 300, "eod": "</s>"},
            "the only end-of-document token of --train-bpe",
        ),
        ({"output": Path("corpus.bin")}, "is not a prefix"),
        ({"output": Path("/tmp")}, "is a folder"),
    ],
)
def test_contradictory_options_are_refused_and_nothing_is_written(options, changes, said):
    with pytest.raises(UsageError, match=said):
        build(replace(options, **changes))
    assert left_in(options.output.parent) == set()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"workers": MOST_WORKERS + 1}, f"--workers {MOST_WORKERS + 1} is not from 1 to"),
        ({"workers": 10**30}, f"is not from 1 to {MOST_WORKERS}"),
        ({"workers": 0}, "--workers 0"),
        (
            {"tokenizer": None, "train_bpe": LARGEST_BPE + 1},
            "--train-bpe 2000001 is above 2,000,000",
        ),
        ({"tokenizer": None, "train_bpe": 10**18}, "is above 2,000,000"),
        (
            {"text_key": "k" * (LONGEST_KEY + 1)},
            "--text-key has 1,001 characters; at most 1,000",
        ),
        ({"eod": "k" * 10**6}, "--eod has 1,000,000 characters"),
    ],
)
def test_an_option_beyond_its_limit_is_refused_with_the_limit_and_nothing_is_written(
    options, changes, said
):
    with pytest.raises(UsageError) as refused:
        build(replace(options, **changes))
    assert said in refused.value.message
    assert left_in(options.output.parent) == set()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("bpe", "--train-bpe 8192"), ("byte", "--tokenizer bytes"), ("char", "--tokenizer chars")],
)
def test_a_word_for_a_kind_of_tokenizer_is_answered_with_its_option(options, name, meant):
    with pytest.raises(UsageError) as refused:
        build(replace(options, tokenizer=name))
    assert refused.value.remedy == meant
