"""Prompts are checked before a run starts; they need no responses."""

import json
from pathlib import Path

import pytest

from rampcli.config.compose import compose
from rampcli.config.values import put
from rampcli.data.prompts import check_prompts, open_prompts, read_prompts
from rampcli.errors import UsageError


@pytest.fixture
def config(tmp_path):
    def write(*prompts, words=()):
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        return compose(
            "data=pairs",
            f"data.path={path}",
            "data.split=[1,1,0]",
            "data.sequence_length=16",
            "rl.generations_per_prompt=4",
            "trainer.val_samples=0",
            *words,
        )

    return write


def test_prompts_need_no_responses(config):
    settings = config("one", "two")
    check_prompts(settings)
    prompts = open_prompts(settings)
    sides = [prompts.training, prompts.validation]
    found = [
        bytes(tokens.tolist()).decode()
        for side in sides
        for _, tokens in read_prompts(side, range(len(side)), prompts.format, settings)
    ]
    assert sorted(found) == ["one", "two"]


@pytest.mark.parametrize(("prompt", "length"), [("123456789", 9), ("123456789012", 12), ("", 0)])
def test_a_prompt_without_room_for_its_response_is_refused_with_its_line(config, prompt, length):
    prompts, words = ("12345678", prompt), ["data.split=[1,0,0]"]
    with pytest.raises(UsageError, match=rf"line 2: the prompt has {length} tokens") as refused:
        check_prompts(config(*prompts, words=words))
    if length:
        offered = [remedy.values for remedy in refused.value.remedies]
        assert offered == [
            {"rl.max_response_tokens": (16 - length,)},
            {"data.sequence_length": (2 * length - 1,)},
        ]
        for one in offered:
            kept = config(*prompts, words=words)
            for key, (value,) in one.items():
                put(kept, key, value)
            check_prompts(kept)
    else:
        assert refused.value.remedy == "prompts that are not empty"


def test_a_prompt_of_very_many_characters_is_refused_and_an_unused_response_is_not(config):
    settings = config("1", words=["data.split=[1,0,0]"])
    Path(settings.data.path).write_text(json.dumps({"prompt": "1", "response": 2**20 * "2"}))
    check_prompts(settings)
    with pytest.raises(UsageError, match="line 2: the prompt has 1,048,577 characters"):
        check_prompts(config("1", "1" + 2**20 * "2", words=["data.split=[1,0,0]"]))


def test_a_side_of_the_split_without_prompts_is_refused_if_it_is_needed(config):
    with pytest.raises(UsageError, match="no prompt for training"):
        check_prompts(config())
    one_side = config("one", words=["data.split=[1,0,0]"])
    check_prompts(one_side)
    one_side.trainer.val_samples = 4
    with pytest.raises(UsageError, match="no prompt for validation"):
        check_prompts(one_side)
