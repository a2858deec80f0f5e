import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

from families import FAMILIES

from rampcli.config.schema import Config
from rampcli.config.snapshot import to_yaml
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.engine.build import fill_weights, initial_weights
from rampcli.engine.checkpoint import Checkpoints, TrainingState
from rampcli.engine.generate import continuation, main, room
from rampcli.errors import NoCheckpointError, UsageError
from rampcli.models.decoder import Decoder
from rampcli.run_directory import RunDirectory

PROMPT = [5, 17, 99, 3]


def build(family: str) -> Decoder:
    model = Decoder(FAMILIES[family], sequence_length=32)
    fill_weights(model, initial_weights(1))
    return model


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_the_full_forward_pass(family):
    model, tokens = build(family), list(PROMPT)
    for token in continuation(model, PROMPT, max_tokens=28, temperature=0):
        assert token == model(torch.tensor([tokens]))[0, -1].argmax().item()
        tokens.append(token)
    assert len(tokens) == 32
    assert len(set(tokens[4:])) > 1


def test_draws_are_a_function_of_the_seed():
    model = build("llama3")
    drawn = [list(continuation(model, PROMPT, max_tokens=20, temperature=1.0, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_of_the_likeliest_token_alone_nothing_else_is_drawn():
    model = build("llama3")
    greedy = list(continuation(model, PROMPT, max_tokens=20, temperature=0))
    assert list(continuation(model, PROMPT, max_tokens=20, temperature=2.0, top_k=1)) == greedy
    assert list(continuation(model, PROMPT, max_tokens=20, temperature=2.0)) != greedy


def test_tokens_that_are_no_text_are_not_drawn():
    assert max(continuation(build("llama3"), PROMPT, max_tokens=28, temperature=3.0, vocab_size=7)) < 7


def test_a_continuation_is_as_long_as_was_asked_for_or_as_the_sequences_that_the_model_has_seen():
    config = Config()
    config.data.sequence_length = 32
    assert room(config, PROMPT, None) == 28
    assert room(config, PROMPT, 5) == 5
    for prompt, max_tokens, remedy in (
        ([], None, "--prompt 'def '"),
        (PROMPT, 29, "--max-tokens 28"),
        (PROMPT * 8, None, "a shorter prompt"),
    ):
        with pytest.raises(UsageError) as refused:
            room(config, prompt, max_tokens)
        assert refused.value.remedy == remedy


def test_the_program_prints_the_text_as_it_comes_or_as_json_from_the_step_that_was_asked_for(build_passes, tmp_path, monkeypatch, capsys):
    config = Config()
    config.model.hidden_size, config.model.ffn_hidden_size, config.data.sequence_length = 16, 16, 32
    run = RunDirectory(tmp_path)
    run.config.write_text(to_yaml(config))
    checkpoints = Checkpoints(run, build_passes(config).parts, [], keep_last=1, facts={"corpus": ""}, tokenizer=byte_tokenizer().to_str())
    checkpoints.save(TrainingState(step=2, consumed_samples=8))

    def generate(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["generate", *words, "--prompt=def é", "--temperature=0", "--", str(tmp_path)])
        main()
        return capsys.readouterr().out

    told = json.loads(generate("--json"))
    assert (told["step"], told["prompt"], len(told["tokens"])) == (2, "def é", 32 - len("def é".encode()))
    assert bytes(told["tokens"]).decode(errors="replace") == told["text"]
    assert generate("--step=2") == f"def é{told['text']}\n"
    with pytest.raises(NoCheckpointError, match="has no checkpoint of step 7 that is whole") as refused:
        generate("--step=7")
    assert refused.value.remedy == "--step, one of 2"
