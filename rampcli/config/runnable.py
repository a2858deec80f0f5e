"""What the engine can train, known without importing it: asked before anything starts, and by every worker."""

from rampcli.config.schema import Config
from rampcli.errors import UsageError

NOT_YET = ("tensor", "pipeline", "context")


def check_parallel(config: Config) -> None:
    """Refuse parallelism that the arithmetic knows and the engine does not.

    Raises:
        UsageError: an axis other than data parallel is larger than 1.
    """
    sizes = {f"parallel.{axis}_parallel_size": getattr(config.parallel, f"{axis}_parallel_size") for axis in NOT_YET}
    if wanted := {key: size for key, size in sizes.items() if size > 1}:
        shown = " and ".join(f"{key}={size}" for key, size in wanted.items())
        raise UsageError(
            f"{shown}: this can be planned, but the engine trains data-parallel only",
            keys=tuple(wanted),
            remedy=" ".join(f"{key}=1" for key in wanted),
        )
