"""The batch of reinforcement learning: prompts x generations, split over updates and ranks.

A sample of such a run is a prompt, so ramps, node schedules and the length of the run count prompts
as pretraining counts samples. A pair is a prompt with one of its generations. In each step,

    pairs = prompts x generations = updates x accumulation x micro batch x data-parallel ranks

exactly. A group is the pairs of one prompt. Advantages compare the pairs of a group, so a micro
batch holds whole groups unless `rl.split_groups` allows parts of one.
"""

from dataclasses import dataclass

from rampcli.batch.division import divisors, nearest_multiples
from rampcli.batch.plan import UPDATES_KEY, BatchPlan, BatchUnit
from rampcli.batch.training_plan import StagePlan
from rampcli.errors import UsageError, set_to

PROMPTS_KEY = "rl.prompts_per_step"
GENERATIONS_KEY = "rl.generations_per_prompt"
PAIRS_KEY = "rl.micro_batch_size"
SPLIT_KEY = "rl.split_groups"


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptUnit(BatchUnit):
    """A batch of prompts, whose micro batches are set in pairs."""

    name: str = "prompts"
    global_key: str = PROMPTS_KEY
    micro_key: str = PAIRS_KEY
    keys: tuple[str, ...] = (GENERATIONS_KEY, PAIRS_KEY, UPDATES_KEY)

    def describe_batch(self, size: int) -> str:
        """Shows the pairs too."""
        generations = self.per_micro_unit
        return (
            f"{PROMPTS_KEY}={size} x {GENERATIONS_KEY}={generations}"
            f" = {size * generations} pairs do"
        )

    def describe_micro_batch(self, size: int, *, varies: bool) -> str:
        """Shows pairs. A single prompt is a group, of which a micro batch may be a part."""
        pairs = size * self.per_micro_unit
        return f"groups of {pairs}" if varies or size == 1 else f"{PAIRS_KEY}={pairs}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PairSettings:
    """How the prompts of a step become pairs, and how these are split.

    Attributes:
        generations: responses to each prompt.
        micro_batch_size: pairs per data-parallel rank per forward/backward; None for all pairs of
            an update.
        updates: optimiser updates that a step's pairs are divided into.
        splits_groups: a micro batch may be a part of a group.
    """

    generations: int
    micro_batch_size: int | None = None
    updates: int = 1
    splits_groups: bool = False

    def check(self) -> None:
        """Checks that a micro batch holds whole groups, or whole parts of one if that is allowed.

        Raises:
            UsageError: it does not.
        """
        micro, group = self.micro_batch_size, self.generations
        if micro is None or micro % group == 0 or (self.splits_groups and group % micro == 0):
            return
        nearest = nearest_multiples(micro, group)
        if self.splits_groups and micro < group:
            nearest.insert(0, divisors(group, most=micro)[-1])
        remedies = [set_to(PAIRS_KEY, *nearest)]
        if not self.splits_groups and group % micro == 0:
            remedies.append(set_to(SPLIT_KEY, True))
        relation = "neither a multiple nor a divisor" if self.splits_groups else "not a multiple"
        raise UsageError(
            f"{PAIRS_KEY}={micro} is {relation} of {GENERATIONS_KEY}={group}",
            keys=(PAIRS_KEY, GENERATIONS_KEY, SPLIT_KEY),
            remedy=remedies,
        )

    @property
    def unit(self) -> "PromptUnit":
        """What a batch counts."""
        return PromptUnit(per_micro_unit=self.generations)

    @property
    def prompts_per_micro_batch(self) -> int | None:
        """Prompts per data-parallel rank that are generated together; None for all of an update."""
        if self.micro_batch_size is None:
            return None
        return max(1, self.micro_batch_size // self.generations)

    def pairs_per_pass(self, prompts: int) -> int:
        """Returns the pairs of a forward and backward pass, for a micro batch of some prompts."""
        pairs = prompts * self.generations
        return pairs if self.micro_batch_size is None else min(self.micro_batch_size, pairs)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairBatch:
    """The pairs of one step.

    `prompts x generations = updates x accumulation x micro_batch_size x data_parallel_size`.

    Attributes:
        generations: responses to each prompt.
        updates: optimiser updates per step.
        accumulation: forward and backward passes per rank and update.
        micro_batch_size: pairs per data-parallel rank per forward/backward.
        data_parallel_size: number of data-parallel ranks.
        rollouts: micro batches of prompts per rank and step, each generated at once.
    """

    prompts: int
    generations: int
    updates: int
    accumulation: int
    micro_batch_size: int
    data_parallel_size: int
    rollouts: int

    @classmethod
    def of(cls, batch_plan: BatchPlan | StagePlan, settings: PairSettings) -> "PairBatch":
        """Returns the pairs of a batch of prompts that divides into the updates."""
        micro = settings.pairs_per_pass(batch_plan.micro_batch_size)
        passes = batch_plan.micro_batch_size * settings.generations // micro
        return cls(
            prompts=batch_plan.global_batch_size,
            generations=settings.generations,
            updates=settings.updates,
            accumulation=batch_plan.accumulate_grad_batches // settings.updates * passes,
            micro_batch_size=micro,
            data_parallel_size=batch_plan.data_parallel_size,
            rollouts=batch_plan.accumulate_grad_batches,
        )

    @property
    def pairs(self) -> int:
        """Prompts with their generations."""
        return self.prompts * self.generations

    def __str__(self) -> str:
        return (
            f"{self.prompts} prompts x {self.generations} generations = {self.pairs} pairs"
            f" = {self.updates} update{'s' if self.updates > 1 else ''}"
            f" x {self.accumulation} micro batch{'es' if self.accumulation > 1 else ''}"
            f" of {self.micro_batch_size} pairs"
            f" x {self.data_parallel_size} data-parallel"
            f" rank{'s' if self.data_parallel_size > 1 else ''}"
        )
