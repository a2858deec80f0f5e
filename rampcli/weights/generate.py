"""Generates text with a trained model. The program of `rampcli generate`."""

import json
import sys
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer

from rampcli.checkpoint.load import load_model, open_run
from rampcli.data.chat_template import ChangedPromptError, ChatTemplate
from rampcli.data.prompts import encode_as_trained
from rampcli.data.tokenizer import continuation, encoder_of, stream_text, vocab_size_of
from rampcli.errors import UsageError, visible
from rampcli.files.records import is_unicode
from rampcli.models.sampler import Sampling, generate_tokens
from rampcli.parallel.ranks import device_here
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.settings.watch import HIGHEST_TEMPERATURE, LOWEST_TEMPERATURE
from rampcli.weights.program import given_options, run_and_exit
from rampcli.weights.tokenizer import read_tokenizer, saved_special_tokens


def main() -> None:
    """Generates what the command line asks for and prints the text while it is generated."""
    options = given_options()
    if options.temperature != 0 and not (
        LOWEST_TEMPERATURE <= options.temperature <= HIGHEST_TEMPERATURE
    ):
        raise UsageError(
            f"--temperature {options.temperature} is neither 0 nor from {LOWEST_TEMPERATURE} to"
            f" {HIGHEST_TEMPERATURE}",
            remedy="--temperature 0.8",
        )
    if not is_unicode(options.prompt):
        raise UsageError("--prompt is not UTF-8", remedy="text in UTF-8")
    config, checkpoint = open_run(Path(options.run_dir), step=options.step)
    tokenizer = read_tokenizer(config, checkpoint)
    if tokenizer is None:
        raise UsageError(
            f"{checkpoint.path} has no tokenizer, so its tokens cannot be turned into text",
            remedy="a run on text, for example data=stdlib or data=text",
        )
    special_tokens = saved_special_tokens(checkpoint, tokenizer)
    template = None
    if not options.raw:
        template = special_tokens.template(place=str(checkpoint.path))
    prompt = _encode(options.prompt, config, tokenizer, template, raw=options.raw)
    if template is not None:
        note = (
            "note: the prompt is put in the chat template of the run; --raw continues it as it is"
        )
        print(note, file=sys.stderr)  # noqa: T201
    max_tokens = count_new_tokens(config, prompt, options.max_tokens)
    model = load_model(config, checkpoint, device_here("auto"), average=options.average)
    generated = generate_tokens(
        model,
        prompt,
        sampling=Sampling(
            temperature=options.temperature,
            top_k=options.top_k,
            max_tokens=max_tokens,
            stops=special_tokens.ends,
            vocab_size=vocab_size_of(tokenizer),
        ),
        seed=options.seed,
    )
    after = prompt if template is None else []
    if not options.as_json:
        in_text = (token for token in generated if token not in special_tokens.ends)
        prompted = options.prompt if template is None else f"{options.prompt}\n"
        for text in chain([prompted], stream_text(in_text, tokenizer, after=after), ["\n"]):
            print(visible(text, keeps="\n\t"), end="", flush=True)  # noqa: T201
        return
    tokens = list(generated)
    text = continuation(special_tokens.before_end(tokens), tokenizer, after=after)
    facts = {
        "step": checkpoint.step,
        **({} if options.average is None else {"average": options.average}),
        "prompt": options.prompt,
        "chat_template": template is not None,
        "text": text,
        "tokens": tokens,
    }
    print(json.dumps(facts))  # noqa: T201


def _encode(
    prompt: str, config: Config, tokenizer: Tokenizer, template: ChatTemplate | None, *, raw: bool
) -> list[int]:
    try:
        if raw:
            return list(encoder_of(tokenizer)([prompt])[0].tolist())
        return encode_as_trained([prompt], config, tokenizer, template)[0]
    except ChangedPromptError as error:
        raise UsageError(f"--prompt: {error.message}", remedy="--raw, or another prompt") from error


def count_new_tokens(config: Config, prompt: list[int], max_tokens: int | None) -> int:
    """Returns how many tokens to generate: `max_tokens`, or as many as the model has room for.

    Raises:
        UsageError: the prompt is empty, or prompt and `max_tokens` exceed the sequence length.
    """
    length = config.data.sequence_length
    if not prompt:
        raise UsageError("--prompt is empty", remedy="--prompt 'def '")
    if len(prompt) + (max_tokens or 1) > length:
        excess = f"and --max-tokens {max_tokens} exceed" if max_tokens else "leaves no room in"
        fits = len(prompt) < length
        raise UsageError(
            f"a prompt of {len(prompt)} tokens {excess} the model's sequence length of {length}"
            " tokens",
            keys=(DataConfig.sequence_length,),
            remedy=f"--max-tokens {length - len(prompt)}" if fits else "a shorter prompt",
        )
    return max_tokens or length - len(prompt)


if __name__ == "__main__":
    run_and_exit(main)
