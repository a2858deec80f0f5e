"""The noise of the gradient of eight samples with 16, 14, .. 2 valid tokens, on any mesh."""

from collections.abc import Sequence
from functools import partial
from unittest.mock import patch

import torch

from rampcli.data.corpus import IGNORED
from rampcli.data.loader import MicroBatch
from rampcli.parallel.mesh import DATA, build_meshes
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from rampcli.train.build import build_parts
from rampcli.train.group_norms import GroupNorms
from rampcli.train.observers.model_observer import Measurement, ModelObserver
from rampcli.train.passes import Passes
from rampcli.train.step import StepResult, accumulate_gradient
from ranks import joined

CPU = torch.device("cpu")
EAGER = partial(torch.compile, backend="aot_eager")
"""Graphs that consist of the operations themselves. C++ for them would take ten seconds."""


def measured(
    parallel: dict[str, int],
    trainer: dict[str, object],
    micro_batch_size: int,
    tied: bool = False,
    observers: Sequence[ModelObserver] = (),
) -> StepResult:
    """Returns the result of a measured step on initial weights."""
    config = Config(
        model=ModelConfig(
            num_layers=2,
            hidden_size=32,
            ffn_hidden_size=48,
            num_query_groups=2,
            vocab_size=64,
            tie_embeddings=tied,
        )
    )
    config.data.sequence_length = 16
    for key, value in parallel.items():
        setattr(config.parallel, key, value)
    for key, value in {"accumulate_reduce": "last", **trainer}.items():
        setattr(config.trainer, key, value)
    tokens, labels = (
        torch.randint(64, (8, 16), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    for sample in range(8):
        labels[sample, 16 - 2 * sample :] = IGNORED
    with joined(), patch.object(torch, "compile", EAGER):
        meshes = build_meshes(CPU, config.parallel)
        passes = Passes(config, build_parts(config, meshes, CPU), meshes, CPU)
        shares = [plane.chunk(meshes.size(DATA))[meshes.rank(DATA)] for plane in (tokens, labels)]
        mine = [share.split(micro_batch_size) for share in shares]
        return accumulate_gradient(
            passes,
            [MicroBatch(*parts) for parts in zip(*mine, strict=True)],
            global_tokens=int((labels != IGNORED).sum()),
            gradient_clip_val=0.1,
            norms=GroupNorms(passes.parts, meshes, pieces=passes.pieces),
            measure=partial(Measurement(observers, 1).addends, passes),
        ).wait()
