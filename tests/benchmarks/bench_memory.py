"""Compares estimates of memory with real steps, over more settings than the tests.

PYTHONPATH=tests python tests/benchmarks/bench_memory.py [MESH ...]
"""

import argparse
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

from distributed.step_memory import step_peaks
from distributed.test_memory import MODELS, configured, estimated
from ranks import run_ranks, stop_ranks

MESHES: dict[str, tuple[int, dict[str, Any]]] = {
    "one": (1, {}),
    "fsdp2": (2, {}),
    "fsdp2, each": (2, {"accumulate_reduce": "each"}),
    "fsdp4": (4, {}),
    "replicated": (2, {"data_parallel_shard_size": 1}),
    "hsdp": (4, {"data_parallel_shard_size": 2}),
    "tensor": (2, {"tensor_parallel_size": 2}),
    "tensor x fsdp": (4, {"tensor_parallel_size": 2}),
    "context": (2, {"context_parallel_size": 2}),
    "pipeline": (2, {"pipeline_parallel_size": 2}),
    "pipeline x fsdp": (4, {"pipeline_parallel_size": 2}),
    "interleaved": (2, {"pipeline_parallel_size": 2, "virtual_pipeline_parallel_size": 2}),
}
BATCHES = ((1, 2), (4, 2), (2, 4))
PRECISIONS = ("fp32", "bf16")
MODES = ("none", "selective", "full")


def compare(mesh: str) -> float:
    """Prints the ratios of estimates to counted bytes, and returns the largest error."""
    ranks, sizes = MESHES[mesh]
    worst = 0.0
    for model, precision in product(MODELS, PRECISIONS):
        settings = [
            sizes | {"precision": precision, "activation_checkpointing": mode} for mode in MODES
        ]
        configs = [configured(model, options) for options in settings]
        with tempfile.TemporaryDirectory() as logs:
            counted = run_ranks(
                ranks, step_peaks, [(config, BATCHES) for config in configs], logs=Path(logs)
            )
        for index, (config, mode) in enumerate(zip(configs, MODES, strict=True)):
            real = [max(peaks) for peaks in zip(*(rank[index] for rank in counted), strict=True)]
            ratios = [
                estimated(config, ranks=ranks, batch=batch) / size
                for batch, size in zip(BATCHES, real, strict=True)
            ]
            worst = max(worst, *(abs(ratio - 1) for ratio in ratios))
            print(f"{mesh:16}{model:22}{precision:6}{mode:10}", *(f"{each:.3f}" for each in ratios))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("meshes", nargs="*", default=list(MESHES), metavar="MESH")
    meshes = parser.parse_args().meshes
    print(f"estimate / counted, for (micro batch, micro batches) {BATCHES}")
    for mesh in meshes:
        print(f"{mesh}: largest error {compare(mesh):.1%}", flush=True)
    stop_ranks()


if __name__ == "__main__":
    main()
