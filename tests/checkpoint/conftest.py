from collections.abc import Callable
from functools import partial

import pytest
import torch

from rampcli.checkpoint.compatibility import check_compatible
from rampcli.checkpoint.load import load_newest
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.data.loader import MicroBatch
from rampcli.runs.directory import RunDirectory
from rampcli.train.optimizers import build_optimizers
from rampcli.train.step import accumulate_gradient


class Training:
    """A model, its optimisers and its checkpoints in a run directory."""

    def __init__(
        self,
        passes,
        optim,
        run: RunDirectory,
        *,
        keep_last: int = 2,
        corpus: str = "corpus",
        settings: dict | None = None,
        in_background: bool = False,
    ) -> None:
        self.passes = passes
        self.optimizers = build_optimizers(passes.parts, optim)
        self.checkpoints = Checkpoints(
            run,
            passes.parts,
            self.optimizers,
            keep_last=keep_last,
            facts={"corpus": corpus, "settings": settings or {}},
            in_background=in_background,
        )

    def load_newest(self) -> TrainingState:
        facts = self.checkpoints.facts
        return load_newest(
            self.checkpoints.run,
            self.passes.parts,
            self.optimizers,
            check=partial(check_compatible, settings=facts["settings"], corpus=(facts["corpus"],)),
        )

    def step_and_save(self, *steps: int, **options) -> None:
        """Takes steps and saves each of them, with the options of `Checkpoints.save`."""
        for step in steps:
            self.step(step)
            state = TrainingState(step=step, consumed_samples=4 * step)
            self.checkpoints.save(state, **options)

    def step(self, seed: int) -> float:
        tokens = torch.randint(64, (4, 16), generator=torch.Generator().manual_seed(seed))
        result = accumulate_gradient(
            self.passes, [MicroBatch(tokens, tokens)], global_tokens=64, gradient_clip_val=1.0
        ).wait()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return result.loss


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path)


@pytest.fixture
def training_of(build_passes, run):
    def build(config, **settings) -> Training:
        return Training(build_passes(config), config.optim, run, **settings)

    return build


@pytest.fixture
def refuse_to_save(run: RunDirectory) -> Callable[[], None]:
    """Replaces the checkpoints folder by a link when called: saves refuse to follow it."""

    def refuse() -> None:
        run.checkpoints.rename(run.path / "elsewhere")
        run.checkpoints.symlink_to("elsewhere")

    return refuse
