"""Runs in phases that Hypothesis draws, and their steps as counting by hand takes them."""

from dataclasses import dataclass

from hypothesis import strategies as st

from rampcli.config.compose import apply_overrides
from rampcli.llm import llama3_tiny
from rampcli.planning.resolve import resolve

ONE_RANK = ("trainer.num_nodes=1", "trainer.devices=1", "data.micro_batch_size=1")
SEMANTICS = ("megatron", "maxtext")
DECAY_STYLES = ("constant", "linear", "cosine", "wsd", "inverse_sqrt", "seesaw")


def planned(words, **options):
    """Returns a run on one rank. Of words with the same key, the last one applies."""
    last = dict(word.split("=", 1) for word in (*ONE_RANK, *words))
    stack = apply_overrides(
        llama3_tiny.pretrain_recipe(), [f"{key}={value}" for key, value in last.items()]
    )
    return resolve(stack, **options)


@dataclass(frozen=True)
class Ramp:
    """A batch that may change, and the oracle of its size."""

    words: tuple[str, ...]
    unit: str | None = None
    entries: tuple[tuple[int, int], ...] = ()
    rampup: tuple[int, int, int] | None = None
    semantics: str = "megatron"
    batch: int = 0

    def size_at(self, samples, steps, tokens, *, length):
        """Returns the size of the next step.

        Args:
            samples: read since the ramp has begun, like the other counts.
            length: tokens per sample.
        """
        if self.unit is not None:
            reached = {"samples": samples, "steps": steps, "tokens": tokens + length - 1}[self.unit]
            return [size for count, size in self.entries if count <= reached][-1]
        if self.rampup is None:
            return self.batch
        start, increment, over = self.rampup
        increments = (self.batch - start) // increment
        if self.semantics == "megatron":
            if samples > over or over == 0:
                return self.batch
            return start + samples * increments // over * increment
        size, counted, at = start, 0, 0
        while at <= samples and size < self.batch:  # as MaxText counts
            at, counted = at + size, counted + size
            if counted * increments >= over:
                size, counted = size + (increment if at <= samples else 0), 0
        return size


@st.composite
def ramps(draw, *, semantics="megatron"):
    kind = draw(st.sampled_from(("constant", "rampup", "samples", "steps", "tokens")))
    if kind == "constant":
        batch = draw(st.integers(1, 12))
        return Ramp(batch_words(batch), batch=batch)
    if kind == "rampup":
        start, increment = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        batch = start + increment * draw(st.integers(1, 3))
        rampup = (start, increment, draw(st.integers(0, 120)))
        words = batch_words(batch, rampup=list(rampup))
        return Ramp(words, rampup=rampup, batch=batch, semantics=semantics)
    per_count = {"samples": 1, "steps": 1, "tokens": 256}[kind]
    counts = sorted(draw(st.sets(st.integers(1, 40), max_size=3)))
    entries = [(count * per_count, draw(st.integers(1, 9))) for count in (0, *counts)]
    text = " ".join(f"{count}:{size}" for count, size in entries)
    prefix = "" if kind == "tokens" else f"{kind}: "
    return Ramp(
        batch_words("null", schedule=f"'{prefix}{text}'"), unit=kind, entries=tuple(entries)
    )


def batch_words(batch, *, rampup="null", schedule="null"):
    return (
        f"model.global_batch_size={batch}",
        f"model.rampup_batch_size={rampup}".replace(" ", ""),
        f"model.step_batch_size_schedule={schedule}",
    )


@st.composite
def positions(draw, *, most=60):
    """Draws an `until`, with the unit and the count."""
    unit = draw(st.sampled_from(("samples", "steps", "tokens")))
    count = draw(st.integers(1, most)) * {"samples": 4, "steps": 1, "tokens": 301}[unit]
    return (str(count) if unit == "tokens" else f"{unit}:{count}"), unit, count


@st.composite
def schedules_of_rate(draw):
    words = [f"schedule.decay_style={draw(st.sampled_from(DECAY_STYLES))}"]
    warmup = draw(st.integers(1, 30))
    unit, other = draw(st.permutations(("steps", "samples")))
    words += [f"optim.warmup_{unit}={warmup}", f"optim.warmup_{other}=null"]
    words.append(f"schedule.batch_coupling={draw(st.sampled_from(('none', 'sqrt', 0.3)))}")
    return tuple(words)


ends = st.sampled_from(("max_steps=41", "max_samples=207", "max_tokens=21003"))


def steps_of(resolved, most=10_000):
    """Yields the samples before and after each step."""
    before = 0
    while not resolved.plan.is_complete(before) and most > 0:
        after = before + resolved.plan.stage_at(before).global_batch_size
        yield before, after
        before, most = after, most - 1


def rate_of_step(resolved, before, after):
    return resolved.at(before).rate.at(after, global_batch_size=after - before)


def advanced(at, size, length):
    """Returns the counts after one more step."""
    return {
        "samples": at["samples"] + size,
        "steps": at["steps"] + 1,
        "tokens": at["tokens"] + size * length,
    }


@st.composite
def simulated(draw):
    """Draws a run in phases and takes its steps one by one.

    Returns:
        The words of the run, and the phase's name, its length and the counts after each step.
    """
    semantics = draw(st.sampled_from(SEMANTICS))
    run = draw(ramps(semantics=semantics))
    words = [*run.words, f"rampup.semantics={semantics}", "schedule.decay_style=constant"]
    limit, count = draw(st.sampled_from([(None, 0), ("steps", 41), ("samples", 207)]))
    words.append(f"trainer.max_{limit or 'steps'}={count if limit else 'null'}")
    at, taken = {"samples": 0, "steps": 0, "tokens": 0}, []
    for number in range(draw(st.integers(1, 4))):
        begun, length = at, draw(st.sampled_from((32, 64, 96)))
        own = draw(st.none() | ramps(semantics=semantics))
        unit = draw(st.sampled_from(sorted(at)))
        goal = at[unit] + draw(st.integers(1, {"samples": 90, "steps": 15, "tokens": 6000}[unit]))
        until = goal if unit == "tokens" else f"{unit}:{goal}"
        inside = [f"until={until}", f"data.sequence_length={length}", *(own.words if own else ())]
        words += [f"phases.p{number}.{word}" for word in inside]
        while at[unit] < goal and (limit is None or at[limit] < count):
            counts = [
                at[one] - (begun[one] if own else 0) for one in ("samples", "steps", "tokens")
            ]
            at = advanced(at, (own or run).size_at(*counts, length=length), length)
            taken.append((f"p{number}", length, at))
    return words, taken
