"""Runs with a checkpoint, without training."""

from pathlib import Path

import pytest
import torch

from models.families import FAMILIES
from rampcli.batch.averages import EMA
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.config.snapshot import identity, to_yaml
from rampcli.data.special_tokens import NONE_KNOWN, SpecialTokens
from rampcli.models.decoder import Decoder
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig


@pytest.fixture
def trained(build_passes, tmp_path):
    """A run directory with a checkpoint, and the model whose weights it holds."""

    def run_of(
        family: str = "llama3",
        tokenizer: str | None = None,
        model: ModelConfig | None = None,
        special_tokens: SpecialTokens = NONE_KNOWN,
        *,
        sequence_length: int = 16,
        average_share: float | None = None,
        weight: float | None = None,
        task: str | None = None,
    ) -> tuple[Path, Decoder]:
        config = Config(model=model or FAMILIES[family])
        config.data.sequence_length = sequence_length
        if task is not None:
            config.data.source, config.data.task, config.data.document_mask = "pairs", task, True
        run = RunDirectory(tmp_path / "run")
        run.path.mkdir()
        run.config.write_text(to_yaml(config))
        passes = build_passes(config)
        torch.manual_seed(0)
        for parameter in passes.parts[0].parameters():
            if weight is None:
                torch.nn.init.normal_(parameter, std=0.2)
            else:
                torch.nn.init.constant_(parameter, weight)
        averages = {}
        if average_share is not None:  # of each weight
            weights = passes.parts[0].parameters()
            averages[EMA] = {weight: weight.detach() * average_share for weight in weights}
        checkpoints = Checkpoints(
            run,
            passes.parts,
            [],
            lambda _: averages,
            keep_last=1,
            facts={"corpus": "corpus", "settings": identity(config)},
            tokenizer=tokenizer,
            special_tokens=special_tokens,
        )
        checkpoints.save(TrainingState(step=3, consumed_samples=12))
        return run.path, passes.parts[0]

    return run_of
