"""Checks settings on their own and against each other, before anything is planned."""

from collections.abc import Callable
from typing import Any

from rampcli.config.architectures import check_huggingface_type
from rampcli.config.checks.launch import LAUNCH_CHECKS
from rampcli.config.checks.model import check_heads, check_rotary
from rampcli.config.checks.ranges import check_ranges
from rampcli.config.checks.rl import RL_CHECKS, check_reward
from rampcli.config.checks.run import check_name, check_paths
from rampcli.config.checks.schedule import check_schedule, check_warmup
from rampcli.config.checks.splits import SPLIT_CHECKS
from rampcli.config.checks.watch import WATCH_CHECKS
from rampcli.config.corpora import check_corpora, check_document_mask, check_split
from rampcli.config.schema import Config

__all__ = ["CHECKS", "CHECKS_OF_WORDS", "check_ranges"]

CHECKS: tuple[Callable[[Config], Any], ...] = (
    check_name,
    check_paths,
    check_heads,
    check_rotary,
    check_huggingface_type,
    check_warmup,
    check_schedule,
    check_corpora,
    check_document_mask,
    check_split,
    *SPLIT_CHECKS,
    *LAUNCH_CHECKS,
    *RL_CHECKS,
    *WATCH_CHECKS,
)
"""Every check of settings against each other. They rely on `check_ranges`."""
CHECKS_OF_WORDS = (*CHECKS, check_reward)
"""All checks of what a user sets now. Those of `CHECKS` also hold for the snapshot of a run."""
