import json
import math
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse, Strip
from tokenizers.models import WordLevel

from models.drawn import draw_decoder
from models.families import FAMILIES
from rampcli.data.special_tokens import SpecialTokens
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import DamagedFileError, NoCheckpointError, UsageError, visible
from rampcli.models import sampler
from rampcli.models.decoder import Decoder
from rampcli.models.sampler import Sampling, generate_tokens
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.weights.generate import count_new_tokens
from weights.generating import generate_here

PROMPT = [5, 17, 99, 3]


def build(family: str) -> Decoder:
    return draw_decoder(FAMILIES[family], 32)


def generated(model: Decoder, *, seed: int = 0, **sampling: float) -> list[int]:
    return list(generate_tokens(model, PROMPT, sampling=Sampling(**sampling), seed=seed))


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_those_of_the_full_forward_pass(family):
    model, tokens = build(family), list(PROMPT)
    for token in generated(model, max_tokens=28, temperature=0):
        assert token == model(torch.tensor([tokens]))[0, -1].argmax().item()
        tokens.append(token)
    assert len(tokens) == 32
    assert len(set(tokens[4:])) > 1


def test_sampled_tokens_depend_only_on_the_seed():
    model = build("llama3")
    drawn = [generated(model, max_tokens=20, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_top_k_of_one_is_greedy():
    model = build("llama3")
    greedy = generated(model, max_tokens=20, temperature=0)
    assert generated(model, max_tokens=20, temperature=2.0, top_k=1) == greedy
    assert generated(model, max_tokens=20, temperature=2.0) != greedy


def test_tokens_that_the_tokenizer_lacks_are_not_drawn():
    assert max(generated(build("llama3"), max_tokens=28, temperature=3.0, vocab_size=7)) < 7


def test_the_text_has_the_requested_length_or_fills_the_context():
    config = Config()
    config.data.sequence_length = 32
    assert count_new_tokens(config, PROMPT, None) == 28
    assert count_new_tokens(config, PROMPT, 5) == 5
    for prompt, max_tokens, remedy in (
        ([], None, "--prompt 'def '"),
        (PROMPT, 29, "--max-tokens 28"),
        (PROMPT * 8, None, "a shorter prompt"),
    ):
        with pytest.raises(UsageError) as refused:
            count_new_tokens(config, prompt, max_tokens)
        assert refused.value.remedy == remedy


@pytest.fixture
def generate(trained, tmp_path, capfd):
    """Runs the program with some options on a tiny model and returns what it printed.

    `tokenizer` replaces the byte tokenizer. `weight` is the value of every weight. `ends` are the
    tokens that end a text. `chat_template` is that of the run's prompts.
    """

    def run_program(
        tokenizer: Tokenizer | str | None = None,
        prompt: str = "def é",
        weight: float | None = None,
        ends: tuple[int, ...] = (),
        chat_template: str | None = None,
        **options: Any,
    ) -> str:
        if not (tmp_path / "run").exists():
            chosen = tokenizer or byte_tokenizer()
            trained(
                tokenizer=chosen if isinstance(chosen, str) else chosen.to_str(),
                model=ModelConfig(hidden_size=16, ffn_hidden_size=16),
                special_tokens=SpecialTokens(ends=ends, chat_template=chat_template),
                sequence_length=32,
                weight=weight,
                task=None if chat_template is None else "sort",
            )
        generate_here(tmp_path / "run", prompt=prompt, **options)
        return capfd.readouterr().out

    return run_program


def test_the_program_prints_text_or_json_from_the_requested_step(
    generate,
):
    told = json.loads(generate(as_json=True, temperature=0))
    assert (told["step"], told["prompt"]) == (3, "def é")
    assert len(told["tokens"]) == 32 - len("def é".encode())
    assert bytes(told["tokens"]).decode(errors="replace") == told["text"]
    assert generate(step=3, temperature=0) == visible(f"def é{told['text']}\n", keeps="\n\t")
    with pytest.raises(NoCheckpointError, match="has no complete checkpoint of step 7") as refused:
        generate(step=7)
    assert refused.value.remedy == "--step 3"


@pytest.mark.parametrize("temperature", [math.nan, math.inf, -math.inf, -1, 1e-30, 1e30])
def test_a_temperature_out_of_range_is_refused(generate, temperature):
    with pytest.raises(UsageError, match="--temperature"):
        generate(temperature=temperature)


def test_more_tokens_than_the_model_has_room_for_are_refused(generate):
    with pytest.raises(UsageError, match="--max-tokens 1000000000000000000 exceed the model"):
        generate(max_tokens=10**18)


@pytest.mark.parametrize("option", [{"temperature": 1e-4}, {"temperature": 1e4}, {"top_k": 10**18}])
def test_numbers_at_their_bounds_are_accepted(generate, option):
    assert generate(**option).startswith("def é")


def test_a_text_stops_at_its_end_which_is_not_printed(generate):
    ends = tuple(range(128))
    told = json.loads(generate(as_json=True, temperature=1, ends=ends))
    *tokens, last = told["tokens"]
    assert last in ends
    assert not {*tokens} & {*ends}
    assert told["text"] == bytes(tokens).decode(errors="replace")
    assert generate(temperature=1) == visible(f"def é{told['text']}\n", keeps="\n\t")


def test_a_prompt_is_put_as_the_run_was_trained_to_see_it(generate, tmp_path, capfd):
    asked = {"as_json": True, "temperature": 0, "prompt": "2+2", "max_tokens": 8}
    template = "<{{ messages[0].content }}>"
    answered = json.loads(generate(**asked, chat_template=template))
    whole = json.loads(generate(**asked | {"prompt": "<2+2>"}, raw=True))
    continued = json.loads(generate(**asked, raw=True))
    assert (answered["chat_template"], whole["chat_template"]) == (True, False)
    assert answered["tokens"] == whole["tokens"] != continued["tokens"]
    shown = generate(temperature=0, prompt="2+2", max_tokens=8)
    assert shown == visible(f"2+2\n{answered['text']}\n", keeps="\n\t")
    generate_here(tmp_path / "run", prompt="2+2", max_tokens=8)
    assert "chat template of the run; --raw" in capfd.readouterr().err


def test_a_prompt_that_is_not_utf_8_is_refused(generate):
    with pytest.raises(UsageError, match="--prompt is not UTF-8"):
        generate(prompt="\udcff")


def test_text_of_a_hostile_tokenizer_is_printed_without_control_characters(generate):
    hostile = ["\x1b[31m", "\x1b]0;owned\x07", "\u202e", "\r", "\x9b2J", "\n", "\t", "a"]
    tokenizer = Tokenizer(
        WordLevel({token: number for number, token in enumerate(hostile)}, unk_token="a")
    )
    tokenizer.decoder = Fuse()
    shown = generate(temperature=10000, tokenizer=tokenizer, prompt="a")
    assert all(visible(token, keeps="\n\t") in shown for token in hostile)
    assert all(character.isprintable() or character in "\n\t" for character in shown)


@pytest.mark.parametrize("as_json", [False, True])
def test_a_tokenizer_that_panics_while_decoding_gives_one_message(generate, capfd, as_json):
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.decoder = Strip("a", 5, 5)
    with pytest.raises(
        DamagedFileError, match="the tokenizer cannot decode its own tokens: index out of bounds"
    ):
        generate(temperature=10000, as_json=as_json, tokenizer=tokenizer, prompt="a")
    assert capfd.readouterr().err == ""


def test_a_tokenizer_with_tokens_beyond_the_vocabulary_gives_one_message(generate):
    # Encoding with it, or writing it, would take 16 GB.
    tokenizer = Tokenizer(WordLevel({"a": 0, "z": 1}, unk_token="a")).to_str()
    with pytest.raises(DamagedFileError, match="has tokens that the model does not have"):
        generate(tokenizer=tokenizer.replace('"z":1', '"z":4000000000'), prompt="z")


@pytest.mark.parametrize("temperature", [0, 1])
def test_nonfinite_weights_give_one_message(generate, temperature):
    with pytest.raises(DamagedFileError, match="logits are not finite"):
        generate(temperature=temperature, weight=math.nan)


@pytest.mark.parametrize("every", [2, 3, 16])
def test_tokens_are_the_same_however_many_are_read_at_once(monkeypatch, every):
    model = build("llama3")
    stop = generated(model, max_tokens=20, temperature=1.0)[7]
    for stops in ((), (stop,)):
        sampling = {"max_tokens": 20, "temperature": 1.0, "stops": stops}
        one_by_one = generated(model, **sampling)
        with monkeypatch.context() as patch:
            patch.setitem(sampler.CHECK_EVERY, "cpu", every)
            assert generated(model, **sampling) == one_by_one
        assert one_by_one[-1] == stop or not stops
