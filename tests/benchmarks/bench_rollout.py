"""Measures the generation of responses on the CPU, next to transformers and one by one.

    python tests/benchmarks/bench_rollout.py [--shape tiny] [--prompts 8 64] [--pairs 64]
        [--prompt-tokens 16] [--new-tokens 64] [--rounds 5] [--threads 1]

All contenders hold the same Llama with random weights in fp32. They draw `--new-tokens` tokens at
temperature 1, for as many pairs of a prompt and a generation as `--pairs` says. With 8 prompts,
each has 8 generations.

    rampcli             `sample_responses`, all pairs at once
    rampcli ragged      the same with prompts of unequal length, which are padded
    rampcli one by one  `sample_responses`, one pair at a time
    transformers        `generate` of transformers with its cache, all pairs at once
    transformers one by one

Each contender is a process of its own, and they take turns in an order that is drawn anew for each
round. Those that go one by one do a few pairs per turn. Seconds are processor time. A ratio is the
tokens per second of `rampcli` in a round over those of the other: above 1, rampcli is faster. The
table shows the median with the quartiles of the rounds.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import one_thread, quartiles

SHAPES = {
    "tiny": {"layers": 4, "hidden": 128, "ffn": 384, "heads": 4, "groups": 2, "vocabulary": 64},
    "small": {"layers": 6, "hidden": 384, "ffn": 1024, "heads": 6, "groups": 2, "vocabulary": 4096},
    "medium": {
        "layers": 12,
        "hidden": 768,
        "ffn": 2048,
        "heads": 12,
        "groups": 4,
        "vocabulary": 32_000,
    },
}
BASE = "rampcli"
ONE_BY_ONE = {"rampcli one by one", "transformers one by one"}
CONTENDERS = [BASE, "rampcli ragged", "transformers", *sorted(ONE_BY_ONE)]
PAIRS_ONE_BY_ONE = 2

Draw = Callable[[list[list[int]], int, int], None]
"""Takes prompts, generations of each, and a seed; draws the responses."""


def save_model(folder: Path, shape: str, length: int) -> None:
    """Saves a Llama with random weights as transformers does."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    sizes = SHAPES[shape]
    config = LlamaConfig(
        num_hidden_layers=sizes["layers"],
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["ffn"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["groups"],
        vocab_size=sizes["vocabulary"],
        max_position_embeddings=length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


def rampcli_model(folder: Path, length: int):
    from rampcli.models.decoder import Decoder
    from rampcli.models.huggingface_config import read_config
    from rampcli.models.initialize import WeightFolder
    from rampcli.train.build import fill_weights

    shape = read_config(folder)
    model = Decoder(shape, sequence_length=length)
    fill_weights(model, WeightFolder(folder, shape, sequence_length=length).rows_of)
    return model


def rampcli_draw(folder: Path, length: int, new_tokens: int) -> Draw:
    import numpy as np

    from rampcli.batch.scrambling import hash_of
    from rampcli.models.sampler import Sampling, sample_responses

    model = rampcli_model(folder, length)
    sampling = Sampling(temperature=1.0, max_tokens=new_tokens)

    def draw(prompts: list[list[int]], generations: int, seed: int) -> None:
        streams = hash_of(seed, 0, np.arange(len(prompts))[:, None], np.arange(generations))
        responses = sample_responses(
            model, prompts, generations=generations, sampling=sampling, streams=streams.ravel()
        )
        assert responses.tokens.shape == (len(prompts) * generations, new_tokens)

    return draw


def transformers_draw(folder: Path, length: int, new_tokens: int) -> Draw:
    import torch
    from transformers import LlamaForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    model = LlamaForCausalLM.from_pretrained(folder).eval()

    def draw(prompts: list[list[int]], generations: int, seed: int) -> None:
        torch.manual_seed(seed)
        tokens = torch.tensor(prompts)
        drawn = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=generations,
            max_new_tokens=new_tokens,
            pad_token_id=0,
            use_cache=True,
        )
        assert drawn.shape == (len(prompts) * generations, length)

    return draw


def take_turns_as(name: str, given: argparse.Namespace) -> None:
    """Draws once for each line of the standard input, and prints tokens per second."""
    build = {"rampcli": rampcli_draw, "transformers": transformers_draw}
    draw = build[name.split()[0]](Path(given.folder), length_of(given), given.new_tokens)
    for line in sys.stdin:
        prompts_of_turn, pairs, seed = json.loads(line)
        drawn = random.Random(seed)
        prompts = [
            [
                drawn.randrange(SHAPES[given.shape]["vocabulary"])
                for _ in range(given.prompt_tokens - (row % 4 if name.endswith("ragged") else 0))
            ]
            for row in range(prompts_of_turn)
        ]
        began = time.process_time()
        if name in ONE_BY_ONE:
            pairs = PAIRS_ONE_BY_ONE
            for pair in range(pairs):
                draw(prompts[pair : pair + 1], 1, seed + pair)
        else:
            draw(prompts, pairs // len(prompts), seed)
        print(pairs * given.new_tokens / (time.process_time() - began), flush=True)


def length_of(given: argparse.Namespace) -> int:
    return given.prompt_tokens + given.new_tokens


class Contender:
    """A process that draws when it is told to."""

    def __init__(self, name: str, folder: str, words: list[str], given: argparse.Namespace) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, __file__, *words, f"--as={name}", f"--folder={folder}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=one_thread(given.threads),
        )

    def turn(self, prompts: int, pairs: int, seed: int) -> float:
        """Draws once and returns the tokens per second."""
        self.process.stdin.write(json.dumps([prompts, pairs, seed]) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def show(contenders: list[Contender], rates: dict[str, list[float]]) -> None:
    """Prints a table of tokens per second and ratios."""
    print(f"{'':<24} {'tokens/s':>9} {'x faster is rampcli':>22}")
    for contender in contenders:
        ratios = [
            base / other for base, other in zip(rates[BASE], rates[contender.name], strict=True)
        ]
        low, middle, high = quartiles(ratios)
        print(
            f"{contender.name:<24} {statistics.median(rates[contender.name]):9,.0f}"
            f" {middle:8.2f} ({low:.2f} to {high:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--prompts", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--as", dest="name", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.name is not None:
        take_turns_as(given.name, given)
        return
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), given.shape, length_of(given))
        contenders = [Contender(name, folder, sys.argv[1:], given) for name in CONTENDERS]
        for prompts in given.prompts:
            rates = {contender.name: [] for contender in contenders}
            for seed in range(given.rounds + 1):
                for contender in random.Random(seed).sample(contenders, len(contenders)):
                    rate = contender.turn(prompts, given.pairs, seed)
                    if seed > 0:  # the first turn warms up
                        rates[contender.name].append(rate)
            print(
                f"\n{given.shape}: {prompts} prompts of {given.prompt_tokens} tokens x"
                f" {given.pairs // prompts} generations of {given.new_tokens} tokens,"
                f" {given.threads} threads\n"
            )
            show(contenders, rates)
        for contender in contenders:
            contender.end()


if __name__ == "__main__":
    main()
