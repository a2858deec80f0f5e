from functools import partial

import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.planning.resolve import resolve
from rampcli.train.compiling import compile_ahead, compile_passes
from ranks import build_passes, run_ranks

CASES = (
    "trainer.compile=true",
    "trainer.compile=true trainer.precision=bf16 data.document_mask=true",  # sharded
    "trainer.compile=true trainer.activation_checkpointing=selective",
    "trainer.compile=true trainer.matmul_precision=medium",
)


def count_graphs(words: list[str]) -> tuple[int, int]:
    """Returns the graphs of a layer that is compiled ahead, and those that a model needs beside."""
    resolved = resolve(apply_overrides(llm.from_factory("llama3_tiny"), words))
    config, split = resolved.config, resolved.plan.batch_on(resolved.plan.stages[0], 1)
    torch.compiler.reset()
    counters.clear()
    compile_ahead(config, micro_batch_size=split.micro_batch_size, world_size=1)
    ahead = counters["stats"]["unique_graphs"]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    compile_passes(build_passes(config), config, split)
    dist.destroy_process_group()
    return ahead, counters["stats"]["unique_graphs"] - ahead


def count_all_graphs() -> list[tuple[int, int]]:
    # The graphs consist of the operations themselves, which takes less time than compiling them.
    compile_with, torch.compile = torch.compile, partial(torch.compile, backend="aot_eager")
    try:
        return [count_graphs(words.split()) for words in CASES]
    finally:
        torch.compile = compile_with
        torch.compiler.reset()


def test_a_model_finds_a_layer_that_was_compiled_ahead(tmp_path):
    (counted,) = run_ranks(1, count_all_graphs, logs=tmp_path)
    # A layer has one graph for training and one for validation.
    assert counted == [(2, 0)] * len(CASES)
