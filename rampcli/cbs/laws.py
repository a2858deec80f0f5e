"""Published laws for the batch of a run, as first guesses where nothing was measured."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLaw:
    """A law that gives a batch for a run.

    Attributes:
        name: of the work that published it.
        about: the law, and which batch it gives.
        source: paper or program.
        certainty: how the numbers of the law were obtained.
        optimizers: values of `optim.optimizer` with which it was fitted.
        parameters: smallest and largest model of the fit, or None if there was a single one.
        tokens: shortest and longest run of the fit, or None if they are unknown.
        batch_tokens: maps the tokens of a run to tokens per step.
    """

    name: str
    about: str
    source: str
    certainty: str
    optimizers: tuple[str, ...]
    parameters: tuple[float, float] | None
    tokens: tuple[float, float] | None
    batch_tokens: Callable[[float], float]

    def misfits(self, *, parameters: int, tokens: int, optimizer: str) -> list[str]:
        """Returns in what a run differs from those of the fit, in words."""
        misfits = []
        if optimizer not in self.optimizers:
            misfits.append(f"fitted with {' and '.join(self.optimizers)}")
        for limits, value, unit in (
            (self.parameters, parameters, "parameters"),
            (self.tokens, tokens, "tokens"),
        ):
            if limits is not None and not limits[0] <= value <= limits[1]:
                low, high = map(_short, limits)
                misfits.append(f"fitted on {low} to {high} {unit}")
        return misfits


def _short(number: float) -> str:
    """Returns a count in millions or billions."""
    return f"{number / 1e9:g}B" if number >= 1e9 else f"{number / 1e6:g}M"


FROM_A_TEXT_ABOUT_IT = "read in a text about the paper"
NANOCHAT_REFERENCE_TOKENS = 12 * (12 * 12 * 768**2 + 768 * 32_768)
"""Tokens of nanochat's reference run: 12 per weight of the matrices of its model d12."""

BATCH_LAWS = (
    BatchLaw(
        name="Power Lines",
        about="0.0306 D^0.383 sequences of 2048 tokens have the lowest loss after D tokens",
        source="arXiv 2505.13738",
        certainty=FROM_A_TEXT_ABOUT_IT,
        optimizers=("adamw",),
        parameters=(111e6, 3.3e9),
        tokens=None,
        batch_tokens=lambda tokens: 0.0306 * tokens**0.383 * 2048,
    ),
    BatchLaw(
        name="Step Law",
        about="0.58 D^0.571 tokens have the lowest loss after D tokens",
        source="arXiv 2503.04715",
        certainty=FROM_A_TEXT_ABOUT_IT,
        optimizers=("adamw",),
        parameters=(60e6, 1e9),
        tokens=(2e9, 100e9),
        batch_tokens=lambda tokens: 0.58 * tokens**0.571,
    ),
    BatchLaw(
        name="nanochat",
        about="2^19 tokens, tuned on 110M parameters and 1.3B tokens, grow as D^0.383",
        source="nanochat, scripts/base_train.py",
        certainty="read in the program; one model was tuned, the exponent is that of Power Lines",
        optimizers=("muon",),
        parameters=None,
        tokens=None,
        batch_tokens=lambda tokens: 2**19 * (tokens / NANOCHAT_REFERENCE_TOKENS) ** 0.383,
    ),
)
"""The exponents of these laws agree on one thing: the batch grows with the tokens of a run."""
