"""Trains endlessly on random tokens with other programs than rampcli.

Each contender follows its own documentation and writes a line to a file for each step.

    python tests/benchmarks/peers/train.py NAME ROWS [--accumulate N] [--compile]

NAME is a key of `PEERS`; ddp and fsdp2 run under torchrun. OMP_NUM_THREADS sets the threads.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from llama import Llama, transformers_llama
from shape import (
    BETAS,
    CLIP,
    DIM,
    FFN,
    GROUPS,
    HEADS,
    LAYERS,
    LR,
    MICRO_BATCH_SIZE,
    SAVE_STEPS,
    SEQUENCE_LENGTH,
    VOCAB_SIZE,
    WEIGHT_DECAY,
)  # fmt: skip
from torch import Tensor, nn

from rampcli.machine.lifeline import die_with_parent

Loss = Callable[[Tensor], Tensor]
"""Maps windows, int64 [batch, sequence + 1], to nats per token."""


def windows() -> Tensor:
    """Returns random tokens: inputs, and labels shifted by one."""
    return torch.randint(VOCAB_SIZE, (MICRO_BATCH_SIZE, SEQUENCE_LENGTH + 1))


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        model.parameters(), lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
    )


def loop(
    model: nn.Module,
    loss_of: Loss,
    given: argparse.Namespace,
    *,
    unsynchronised: Callable[[], Any] = nullcontext,
) -> None:
    """Trains with the usual minimal loop."""
    optimizer = adamw(model)
    step = 0
    while True:
        total = 0.0
        for index in range(given.accumulate):
            with nullcontext() if index == given.accumulate - 1 else unsynchronised():
                loss = loss_of(windows()) / given.accumulate
                loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        given.rows.write(f"{step} {total}\n")


LLAMA = {
    "dim": DIM,
    "layers": LAYERS,
    "heads": HEADS,
    "groups": GROUPS,
    "ffn": FFN,
    "vocab_size": VOCAB_SIZE,
    "sequence_length": SEQUENCE_LENGTH,
}


def minimal(given: argparse.Namespace) -> None:
    model = Llama(**LLAMA)
    run = torch.compile(model) if given.compile else model
    loop(model, lambda window: run(window[:, :-1], window[:, 1:]), given)


def transformers(given: argparse.Namespace) -> None:
    model = transformers_llama(**LLAMA)
    run = torch.compile(model) if given.compile else model
    # transformers shifts the labels itself.
    loop(model, lambda window: run(input_ids=window[:, :-1], labels=window[:, :-1]).loss, given)


def trainer(given: argparse.Namespace) -> None:
    """Trains with transformers' Trainer, which shows its progress, logs and saves."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class RandomTokens(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, _: int) -> dict[str, Tensor]:
            tokens = torch.randint(VOCAB_SIZE, (SEQUENCE_LENGTH,))
            return {"input_ids": tokens, "labels": tokens}

    class Rows(TrainerCallback):
        def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            given.rows.write(f"{state.global_step}\n")

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            per_device_train_batch_size=MICRO_BATCH_SIZE,
            gradient_accumulation_steps=given.accumulate,
            max_steps=200_000,
            optim="adamw_torch_fused",
            learning_rate=LR,
            weight_decay=WEIGHT_DECAY,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            max_grad_norm=CLIP,
            logging_steps=10,
            save_steps=SAVE_STEPS,
            save_total_limit=2,
            report_to="none",
            torch_compile=given.compile,
        )
        Trainer(
            model=transformers_llama(**LLAMA),
            args=arguments,
            train_dataset=RandomTokens(),
            callbacks=[Rows()],
        ).train()


def litgpt(given: argparse.Namespace) -> None:
    """Trains litgpt's model with its loss and its loop over Fabric, as in its pretrain.py.

    That program compiles the model.
    """
    import lightning
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision="32-true")
    fabric.launch()
    config = Config(
        n_layer=LAYERS,
        n_embd=DIM,
        n_head=HEADS,
        n_query_groups=GROUPS,
        intermediate_size=FFN,
        vocab_size=VOCAB_SIZE,
        padded_vocab_size=VOCAB_SIZE,
        block_size=SEQUENCE_LENGTH,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
    )
    plain = GPT(config)
    model = fabric.setup(torch.compile(plain) if given.compile else plain)
    optimizer = fabric.setup_optimizers(adamw(model))
    iteration = 0
    total = 0.0
    while True:
        iteration += 1
        window = windows()
        input_ids, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
        is_accumulating = iteration % given.accumulate != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            loss = chunked_cross_entropy(model(input_ids), targets)
            fabric.backward(loss / given.accumulate)
        total += loss.item()
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=CLIP)
            optimizer.step()
            optimizer.zero_grad()
            given.rows.write(f"{iteration // given.accumulate} {total / given.accumulate}\n")
            total = 0.0


def torchtitan(given: argparse.Namespace) -> None:
    """Trains torchtitan's model and loss in the minimal loop.

    Its parent packages need triton at import, the model does not: empty packages replace them.
    """
    import importlib.util
    import sys
    import types

    found = importlib.util.find_spec("torchtitan")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'torchtitan'")
    for name in ("torchtitan", "torchtitan.models.llama3"):
        package = types.ModuleType(name)
        package.__path__ = [
            found.submodule_search_locations[0] + name.removeprefix("torchtitan").replace(".", "/")
        ]
        sys.modules[name] = package
    from torchtitan.models.llama3.model.args import TransformerModelArgs
    from torchtitan.models.llama3.model.model import Transformer

    shape = TransformerModelArgs(
        dim=DIM,
        n_layers=LAYERS,
        n_heads=HEADS,
        n_kv_heads=GROUPS,
        vocab_size=VOCAB_SIZE,
        multiple_of=FFN,
        max_seq_len=SEQUENCE_LENGTH,
    )
    model = Transformer(shape)
    with torch.no_grad():
        model.init_weights()
    run = torch.compile(model) if given.compile else model
    loop(
        model,
        lambda window: F.cross_entropy(
            run(window[:, :-1]).flatten(0, 1).float(), window[:, 1:].flatten()
        ),
        given,
    )


def ddp(given: argparse.Namespace) -> None:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(
        Llama(**LLAMA), gradient_as_bucket_view=True, broadcast_buffers=False
    )
    loop(
        model,
        lambda window: model(window[:, :-1], window[:, 1:]),
        given,
        unsynchronised=model.no_sync,
    )


def fsdp2(given: argparse.Namespace) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    model = Llama(**LLAMA)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    loop(model, lambda window: model(window[:, :-1], window[:, 1:]), given)


PEERS = {
    each.__name__: each for each in (minimal, transformers, trainer, litgpt, torchtitan, ddp, fsdp2)
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("rows")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    die_with_parent()
    # Only rank 0 writes rows, so that a row is one step of all ranks.
    path = Path(given.rows) if os.environ.get("RANK", "0") == "0" else Path(os.devnull)
    with path.open("a", buffering=1) as given.rows:
        PEERS[given.name](given)


if __name__ == "__main__":
    main()
