"""Text from a trained model: `python -m rampcli.engine.generate RUN_DIR --prompt TEXT ...`."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from torch import Tensor

from rampcli.config.choices import Accelerator
from rampcli.config.schema import Config
from rampcli.data.tokenizer import encoder_of
from rampcli.engine.program import leave_after
from rampcli.engine.ranks import device_here
from rampcli.engine.trained import load_model, open_run, tokenizer_of
from rampcli.errors import UsageError
from rampcli.models.decoder import Cache, Decoder


def main() -> None:
    """Generate as the command line says; print the text as it comes."""
    words = _words()
    config, checkpoint = open_run(words.run_dir, step=words.step)
    tokenizer = tokenizer_of(checkpoint)
    if tokenizer is None:
        raise UsageError(
            f"{checkpoint.path} has no tokenizer: nothing says what its tokens mean", remedy="a run on text: data=stdlib, data=text, say"
        )
    prompt = encoder_of(tokenizer)([words.prompt])[0].tolist()
    max_tokens = room(config, prompt, words.max_tokens)
    model = load_model(config, checkpoint, sequence_length=config.data.sequence_length, device=device_here(Accelerator.auto))
    drawn = continuation(
        model,
        prompt,
        max_tokens=max_tokens,
        temperature=words.temperature,
        top_k=words.top_k,
        seed=words.seed,
        vocab_size=tokenizer.get_vocab_size(),
    )
    if words.json:
        tokens = list(drawn)
        print(json.dumps({"step": checkpoint.step, "prompt": words.prompt, "text": tokenizer.decode(tokens), "tokens": tokens}))  # noqa: T201
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


def room(config: Config, prompt: list[int], max_tokens: int | None) -> int:
    """How many tokens to give: as many as were asked for, or as fit."""
    length = config.data.sequence_length
    if not prompt:
        raise UsageError("--prompt is empty: a continuation needs something to continue", remedy="--prompt 'def '")
    if len(prompt) + (max_tokens or 1) > length:
        asked = f" and --max-tokens {max_tokens}" if max_tokens else ""
        raise UsageError(
            f"a prompt of {len(prompt)} tokens{asked}: the model has seen sequences of {length} tokens only",
            keys=("data.sequence_length",),
            remedy=f"--max-tokens {length - len(prompt)}" if len(prompt) < length else "a shorter prompt",
        )
    return max_tokens or length - len(prompt)


def _print_as_it_comes(prompt: str, tokens: Iterator[int], tokenizer: Tokenizer) -> None:
    print(prompt, end="", flush=True)  # noqa: T201
    stream, held = DecodeStream(skip_special_tokens=True), []
    for token in tokens:
        held.append(token)
        if (text := stream.step(tokenizer, token)) is not None:
            print(text, end="", flush=True)  # noqa: T201
            held.clear()
    print(tokenizer.decode(held))  # noqa: T201


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
    """
    device = model.positions.device
    generator = torch.Generator(device).manual_seed(seed)
    cache: Cache = {}
    tokens, length = torch.tensor([prompt], device=device), 0
    for _ in range(max_tokens):
        logits = model(tokens, torch.arange(length, length + tokens.shape[1], device=device), cache)[0, -1, :vocab_size].float()
        length += tokens.shape[1]
        token = _draw(logits, temperature=temperature, top_k=top_k, generator=generator)
        yield int(token)
        tokens = token.view(1, 1)


def _draw(logits: Tensor, *, temperature: float, top_k: int | None, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax()
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -torch.inf)
    return torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=generator)[0]


if __name__ == "__main__":
    leave_after(main)
