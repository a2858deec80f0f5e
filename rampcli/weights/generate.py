"""Text from a trained model: `python -m rampcli.weights.generate RUN_DIR --prompt TEXT ...`."""

import argparse
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from torch import Tensor

from rampcli.checkpoint.load_weights import load_model, open_run, tokenizer_of
from rampcli.config.choices import Accelerator
from rampcli.config.schema import Config
from rampcli.data.tokenizer import encoder_of, failing_as, vocab_size_of
from rampcli.errors import DamagedFileError, UsageError, visible
from rampcli.models.decoder import Cache, Decoder
from rampcli.parallel.ranks import device_here
from rampcli.weights.program import leave_after

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1e-4, 1e4
"""Beyond these, dividing logits by it overflows or leaves no difference between them."""


def main() -> None:
    """Generate as the command line says; print the text as it comes."""
    words = _words()
    check_words(words)
    config, checkpoint = open_run(words.run_dir, step=words.step)
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer is None:
        raise UsageError(
            f"{checkpoint.path} has no tokenizer: nothing says what its tokens mean",
            remedy="a run on text: data=stdlib, data=text, say",
        )
    prompt = encoder_of(tokenizer)([words.prompt])[0].tolist()
    if prompt and max(prompt) >= config.model.vocab_size:
        raise DamagedFileError(
            f"the tokenizer of {checkpoint.path} has tokens that the model does not have"
        )
    max_tokens = room(config, prompt, words.max_tokens)
    model = load_model(
        config,
        checkpoint,
        sequence_length=config.data.sequence_length,
        device=device_here(Accelerator.auto),
    )
    drawn = continuation(
        model,
        prompt,
        max_tokens=max_tokens,
        temperature=words.temperature,
        top_k=words.top_k,
        seed=words.seed,
        vocab_size=vocab_size_of(tokenizer),
    )
    if words.json:
        tokens = list(drawn)
        with _decoding():
            text = tokenizer.decode(tokens)
        print(  # noqa: T201
            json.dumps(
                {"step": checkpoint.step, "prompt": words.prompt, "text": text, "tokens": tokens}
            )
        )
    else:
        _print_as_it_comes(words.prompt, drawn, tokenizer)


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", type=int)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def check_words(words: argparse.Namespace) -> None:
    """Check the options on their own.

    Raises:
        UsageError: one of them is out of its range.
    """
    temperature = words.temperature
    if temperature != 0 and not LEAST_TEMPERATURE <= temperature <= MOST_TEMPERATURE:
        raise UsageError(
            f"--temperature {temperature} is neither 0 nor from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE}",
            remedy="--temperature 0.8",
        )
    for name, number in (("--top-k", words.top_k), ("--max-tokens", words.max_tokens)):
        if number is not None and number < 1:
            raise UsageError(f"{name} {number} is below 1", remedy=f"{name} 1 or more")
    try:
        words.prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError("--prompt is not UTF-8", remedy="text in UTF-8") from error


def room(config: Config, prompt: list[int], max_tokens: int | None) -> int:
    """How many tokens to give: as many as were asked for, or as fit."""
    length = config.data.sequence_length
    if not prompt:
        raise UsageError(
            "--prompt is empty: a continuation needs something to continue",
            remedy="--prompt 'def '",
        )
    if len(prompt) + (max_tokens or 1) > length:
        asked = f" and --max-tokens {max_tokens}" if max_tokens else ""
        raise UsageError(
            f"a prompt of {len(prompt)} tokens{asked}: the model has seen sequences of {length} tokens only",
            keys=("data.sequence_length",),
            remedy=f"--max-tokens {length - len(prompt)}"
            if len(prompt) < length
            else "a shorter prompt",
        )
    return max_tokens or length - len(prompt)


def _print_as_it_comes(prompt: str, tokens: Iterator[int], tokenizer: Tokenizer) -> None:
    def show(text: str, end: str = "") -> None:
        print(visible(text, keeps="\n\t"), end=end, flush=True)  # noqa: T201

    show(prompt)
    stream, held = DecodeStream(skip_special_tokens=True), []
    for token in tokens:
        held.append(token)
        with _decoding():
            text = stream.step(tokenizer, token)
        if text is not None:
            show(text)
            held.clear()
    with _decoding():
        text = tokenizer.decode(held)
    show(text, end="\n")


def _decoding() -> AbstractContextManager[None]:
    """Let a tokenizer that contradicts itself be a damaged file."""
    return failing_as("the tokenizer cannot decode its own tokens", kind=DamagedFileError)


@torch.no_grad()
def continuation(
    model: Decoder,
    prompt: list[int],
    *,
    max_tokens: int,
    temperature: float,
    top_k: int | None = None,
    seed: int = 0,
    vocab_size: int | None = None,
) -> Iterator[int]:
    """The tokens that follow a prompt, one by one; each costs the forward pass of one token, as a cache has the others' keys and values.

    Args:
        model: its `sequence_length` has room for prompt and continuation.
        prompt: at least one token.
        max_tokens: how many to give.
        temperature: the logits are divided by it; 0 always takes the likeliest token.
        top_k: draw from so many of the likeliest; from all, if None.
        seed: of the draws.
        vocab_size: only tokens below it are drawn; all, if None.

    Raises:
        DamagedFileError: the logits are not finite.
    """
    device = model.positions.device
    generator = torch.Generator(device).manual_seed(seed)
    cache: Cache = {}
    tokens, length = torch.tensor([prompt], device=device), 0
    for _ in range(max_tokens):
        logits = model(
            tokens, torch.arange(length, length + tokens.shape[1], device=device), cache
        )[0, -1, :vocab_size].float()
        length += tokens.shape[1]
        if not logits.isfinite().all():
            raise DamagedFileError(
                "the model's logits are not finite: its training has diverged, or its weights are damaged"
            )
        token = _draw(logits, temperature=temperature, top_k=top_k, generator=generator)
        yield int(token)
        tokens = token.view(1, 1)


def _draw(
    logits: Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    if temperature == 0:
        return logits.argmax()
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)
    return torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=generator)[0]


if __name__ == "__main__":
    leave_after(main)
