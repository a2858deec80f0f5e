"""What the engine can train, known without importing it: asked before anything starts, and by every worker."""

from rampcli.config.schema import Config
from rampcli.errors import UsageError


def check_runnable(config: Config) -> None:
    """Refuse what the arithmetic knows and the engine does not.

    Raises:
        UsageError: some hosts are to read for others.
    """
    factor = config.data.expansion_factor_real_data
    if factor is not None and factor > 0 and factor != 1:
        raise UsageError(
            f"data.expansion_factor_real_data={factor:g}: this can be planned, but here every rank reads its own samples",
            keys=("data.expansion_factor_real_data",),
            remedy="data.expansion_factor_real_data=null",
        )
