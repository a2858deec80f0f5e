"""Facts about a batch that is not the recipe's: the settings that are tied to it."""

from dataclasses import asdict, dataclass
from typing import Any

from rampcli.errors import shown

RETUNE = "--retune"
"""Option that applies the rules, and the place of the values that it sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetunedSetting:
    """The value that a rule gives a setting.

    Attributes:
        key: the setting.
        value: with four digits, or None if no rule is known.
        rule: the rule in words, or why none is known.
        source: where it comes from, or None.
        tested: what the source has tested, if that does not cover this batch or model.
        sets: another setting that gets the value and replaces this one.
    """

    key: str
    value: float | None
    rule: str
    source: str | None = None
    tested: str | None = None
    sets: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TiedSetting(RetunedSetting):
    """A setting that is tied to the batch.

    Attributes:
        state: `proposed`, `applied` by `--retune`, `kept` because the user set it, or `unknown`.
        recipe: its value in the recipe.
        now: its value in the run.
        set_by: place of that value.
    """

    state: str
    recipe: Any
    now: Any
    set_by: str

    def __str__(self) -> str:
        tested = None if self.tested is None else f"tested for {self.tested} only"
        reasons = ", ".join(filter(None, (self.rule, self.source, tested)))
        if self.state == "unknown":
            return f"{self.key} stays {shown(self.now)}: {reasons}"
        value = shown(self.value) if self.sets is None else f"{self.sets}={shown(self.value)}"
        if self.state == "kept":
            stays = f"{self.key} stays {shown(self.now)} ({self.set_by})"
            return f"{stays}; the rule gives {value} ({reasons})"
        if self.value == self.recipe:
            return f"{self.key} keeps the recipe's {value} ({reasons})"
        return f"{self.key} {shown(self.recipe)} -> {value} ({reasons})"

    def words(self) -> list[str]:
        """Returns the overrides that apply the rule."""
        if self.sets is None:
            return [f"{self.key}={shown(self.value)}"]
        return [f"{self.sets}={shown(self.value)}", f"{self.key}=null"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Retuning:
    """How a batch differs from the recipe's, and the settings that are tied to it.

    The batch is that at the end of a ramp or a schedule. If it grows in place of a decay (Seesaw),
    it is the first one, to which the learning rate belongs.

    Attributes:
        phase: the phase that has the batch, or None if it is the one of the run.
        batch: samples of the batch.
        grows: whether it grows in place of a decay.
        recipe_batch: samples of the recipe's batch.
        recipe_length: tokens per sample in the recipe, if they differ from the run's.
        factor: the batch as a multiple of the recipe's. Of a phase whose samples have another
            length than those of the run, both are counted in tokens.
    """

    phase: str | None
    batch: int
    grows: bool
    recipe_batch: int
    recipe_length: int | None
    settings: tuple[TiedSetting, ...]
    factor: float

    def words(self, state: str = "proposed") -> list[str]:
        """Returns the overrides that apply the rules to the settings in a state.

        Those in the state `proposed` are what the user has not set.
        """
        return [word for one in self.settings if one.state == state for word in one.words()]

    def lines(self) -> list[str]:
        """Returns a line about the batch, and one for each tied setting."""
        states = {one.state for one in self.settings}
        heading = "batch" if self.phase is None else f"batch of phase {self.phase}"
        grows = " before it grows" if self.grows else ""
        heading += f": {self.batch:,} samples{grows}, {self.factor:.4g}x the recipe's"
        heading += f" {self.recipe_batch:,}"
        if self.recipe_length is not None:
            heading += f", whose samples have {self.recipe_length:,} tokens"
        if self.factor == 1:
            heading += f"; {RETUNE} keeps what is tied to it:"
        elif "proposed" in states:
            heading += f"; {RETUNE} would adapt what is tied to it:"
        elif "applied" in states:
            heading += f"; {RETUNE} has adapted what is tied to it:"
        elif states:
            heading += "; tied to it:"
        return [heading, *(f"  {one}" for one in self.settings)]

    def to_json(self) -> dict[str, Any]:
        """Returns the change and its settings as plain data."""
        data = asdict(self)
        del data["phase"]
        return data
