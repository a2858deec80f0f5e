"""Measures how fast `rampcli data build` is, next to the tokenizers library on the same texts.

    python tests/benchmarks/bench_data_build.py [PAIRS [MEGABYTES]]

The corpus is the source of the Python standard library as JSON lines, repeated. The tokenizer is a
BPE of 8192 tokens trained on it. Each pair measures `encode_batch` over all texts in memory, with
as many threads as there are processors, and then the whole build, from the file to the final
files. The library's time includes no start, reading or writing. Prints the medians of both and of
the pairs' ratios, and how fast the build is with a token for each byte.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

OURS = [sys.executable, "-m", "rampcli", "data", "build"]
ENCODE = """
import json, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
texts = [json.loads(line)["text"] for line in open(sys.argv[2])]
began = time.perf_counter()
encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
print(time.perf_counter() - began)
"""


def write_corpus(path: Path, size: int) -> int:
    """Writes about `size` bytes of text as JSON lines and returns the exact number."""
    written = 0
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py"))
    sources = [source for source in sources if "site-packages" not in source.parts]
    with path.open("w") as file:
        while written < size:
            for source in sources:
                text = source.read_text(encoding="utf-8", errors="ignore")
                written += len(text.encode())
                file.write(json.dumps({"text": text}) + "\n")
                if written >= size:
                    break
    return written


def seconds_of_library(tokenizer: Path, corpus: Path) -> float:
    """Returns the seconds of `encode_batch` alone."""
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, "-c", ENCODE, str(tokenizer), str(corpus)]
    return float(
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    )


def seconds_of_build(corpus: Path, output: Path, tokenizer: str) -> float:
    """Returns the seconds of the whole command."""
    began = time.perf_counter()
    command = [*OURS, str(corpus), "--output", str(output), "--tokenizer", tokenizer]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", nargs="?", type=int, default=3, metavar="PAIRS")
    parser.add_argument("megabytes", nargs="?", type=int, default=40, metavar="MEGABYTES")
    given = parser.parse_args()
    pairs, size = given.pairs, given.megabytes * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = folder / "corpus.jsonl"
        text_bytes = write_corpus(corpus, size)
        subprocess.run(
            [*OURS, str(corpus), "--output", str(folder / "trained"), "--train-bpe", "8192"],
            check=True,
        )
        tokenizer = folder / "trained.tokenizer.json"
        measured = []
        for number in range(pairs):
            library = seconds_of_library(tokenizer, corpus)
            measured.append(
                (library, seconds_of_build(corpus, folder / f"built{number}", str(tokenizer)))
            )
            speeds = [text_bytes / 1e6 / seconds for seconds in measured[-1]]
            print(f"encode_batch {speeds[0]:.2f} MB/s, build {speeds[1]:.2f} MB/s", flush=True)
        library, ours = (statistics.median(column) for column in zip(*measured, strict=True))
        ratio = statistics.median(one / two for one, two in measured)
        processors = len(os.sched_getaffinity(0))
        print(f"\n{text_bytes / 1e6:.1f} MB of text, {processors} processors, {pairs} pairs")
        print(
            f"encode_batch {library:.2f} s, build {ours:.2f} s:"
            f" the build reaches {ratio:.2f} of its speed"
        )
        by_bytes = statistics.median(
            seconds_of_build(corpus, folder / f"bytes{number}", "bytes") for number in range(pairs)
        )
        print(f"--tokenizer bytes: {text_bytes / 1e6 / by_bytes:.1f} MB/s")


if __name__ == "__main__":
    main()
