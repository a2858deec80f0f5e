"""Finds the files of the corpora and their shares of the samples."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import gcd, lcm
from pathlib import Path

from rampcli.config.schema import Config
from rampcli.config.settings import shown
from rampcli.errors import UsageError

MOST_SHARES = 2**31
"""Limit of the sum of whole shares, so that products with counts of samples fit in 64 bits."""
MOST_DIGITS = 30
PATH_FORMS = {
    "indexed": "PREFIX, as given to `rampcli data build`",
    "text": "FILE, or a folder",
}
"""The form of `data.path`, for each source that reads the user's files."""


def corpora_of(config: Config) -> list[tuple[int, Path]]:
    """Returns the training corpora as (share, path).

    Shares are whole numbers in proportion to the weights.

    Raises:
        UsageError: `data.blend` is not `[weight,path,weight,path,...]`.
    """
    blend = config.data.blend
    if blend is None:
        return [] if config.data.path is None else [(1, Path(config.data.path).expanduser())]
    if len(blend) % 2 or not blend:
        raise _invalid_blend(blend, "is not a list of weights and paths in turn")
    weights = []
    for word in blend[::2]:
        try:
            weight = Decimal(word)
        except InvalidOperation:
            weight = Decimal("nan")
        if not weight.is_finite():
            raise _invalid_blend(blend, f"has {word} in place of a weight")
        if weight <= 0:
            raise _invalid_blend(blend, f"has the weight {word}, which is not above 0")
        if abs(weight.adjusted()) > MOST_DIGITS:
            raise _too_many_digits()
        weights.append(Fraction(weight))
    return list(
        zip(shares_of(weights), (Path(path).expanduser() for path in blend[1::2]), strict=True)
    )


def shares_of(weights: Sequence[Fraction]) -> list[int]:
    """Returns the smallest whole numbers in proportion to the weights.

    Raises:
        UsageError: the weights have too many digits.
    """
    unit = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * unit) for weight in weights]
    shares = [share // gcd(*whole) for share in whole]
    if sum(shares) > MOST_SHARES:
        raise _too_many_digits()
    return shares


def _too_many_digits() -> UsageError:
    return UsageError(
        "the weights of data.blend have too many digits",
        keys=("data.blend",),
        remedy="weights of up to nine digits",
    )


def _invalid_blend(blend: list[str], reason: str) -> UsageError:
    return UsageError(
        f"data.blend={shown(blend)} {reason}",
        keys=("data.blend",),
        remedy="data.blend=[0.7,data/wiki,0.3,data/code]",
    )


def check_corpora(config: Config) -> None:
    """Checks that the source has the paths that it needs and no others."""
    data = config.data
    given = {
        key: value
        for key, value in (("data.path", data.path), ("data.blend", data.blend))
        if value is not None
    }
    if data.source in PATH_FORMS:
        if not given:
            raise UsageError(
                f"data.source={data.source} needs data.path, which is not given",
                keys=("data.source", "data.path"),
                remedy=f"data.path={PATH_FORMS[data.source]}",
            )
        if len(given) > 1:
            raise UsageError(
                "data.path and data.blend are both given", keys=tuple(given), remedy="one of them"
            )
        trained = [path for _, path in corpora_of(config)]
        if data.validation_path is not None and Path(data.validation_path).expanduser() in trained:
            raise UsageError(
                f"data.validation_path={data.validation_path} is also a training corpus",
                keys=("data.validation_path", *given),
                remedy="data.validation_path=null, so that data.split applies",
            )
    elif data.validation_path is not None or given:
        key = next(iter(given), "data.validation_path")
        raise UsageError(
            f"{key} does not apply to data.source={data.source}",
            keys=(key, "data.source"),
            remedy="data=indexed",
        )


def check_split(config: Config) -> None:
    """Checks that `data.split` has three shares: the first above 0, the others at least 0."""
    split = config.data.split
    if len(split) != 3 or min(split) < 0 or split[0] <= 0:
        raise UsageError(
            f"data.split={shown(split)} is not three shares: the first above 0, the others at"
            " least 0",
            keys=("data.split",),
            remedy="data.split=[98,1,1]",
        )
