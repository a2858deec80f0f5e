"""What the engine can train, known without importing it: asked before anything starts, and by every worker."""

from rampcli.config.schema import Config
from rampcli.errors import Report, UsageError

NOT_YET = ("tensor", "pipeline", "context")


def check_runnable(config: Config) -> None:
    """Refuse what the arithmetic knows and the engine does not.

    Raises:
        UsageError: an axis other than data parallel is larger than 1, or some hosts are to read for others.
    """
    report = Report()
    sizes = {f"parallel.{axis}_parallel_size": getattr(config.parallel, f"{axis}_parallel_size") for axis in NOT_YET}
    with report.noting():
        if wanted := {key: size for key, size in sizes.items() if size > 1}:
            shown = " and ".join(f"{key}={size}" for key, size in wanted.items())
            raise UsageError(
                f"{shown}: this can be planned, but the engine trains data-parallel only",
                keys=tuple(wanted),
                remedy=" ".join(f"{key}=1" for key in wanted),
            )
    with report.noting():
        factor = config.data.expansion_factor_real_data
        if factor is not None and factor > 0 and factor != 1:
            raise UsageError(
                f"data.expansion_factor_real_data={factor:g}: this can be planned, but here every rank reads its own samples",
                keys=("data.expansion_factor_real_data",),
                remedy="data.expansion_factor_real_data=null",
            )
    report.close()
