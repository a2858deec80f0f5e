"""MaxText: its words in our settings, and a plan in its words.

Numbers follow MaxText's `types.py` and `rampup_batch.py`, but a fraction that MaxText truncates is
refused.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice
from math import ceil, gcd
from typing import Any

from rampcli.batch.division import nearest_divisors
from rampcli.batch.micro_batch import LARGEST, STAGE_MICRO_KEY
from rampcli.batch.node_policies import POLICY_KEY
from rampcli.batch.pairs import GENERATIONS_KEY, PAIRS_KEY, PROMPTS_KEY
from rampcli.batch.pipeline import MICROBATCHES_KEY, PIPELINE_SIZE_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, FLEET_KEYS, GLOBAL_KEY, MICRO_KEY
from rampcli.batch.quantities import as_written, decimal, is_decimal
from rampcli.batch.ramp import RAMP_KEY, SEMANTICS_KEY
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.errors import UsageError, set_to, set_together, shown
from rampcli.words import maxtext_mesh
from rampcli.words.maxtext_mesh import FILLS, fleet_of
from rampcli.words.translation import (
    CombinedWord,
    L,
    Layers,
    Source,
    System,
    Translation,
    contradiction,
    differences,
    given,
    to_assignments,
)

PER_DEVICE = "per_device_batch_size"
ENABLE = "enable_rampup_batch_size"
START = "per_device_batch_size_start"
INCREMENT = "per_device_batch_size_increment"
RAMP_SAMPLES = "global_rampup_samples"
RAMP_WORDS = (START, INCREMENT, RAMP_SAMPLES)
RAMP_SETTINGS = (ENABLE, *RAMP_WORDS)
_RAMPS = (RAMP_KEY, SCHEDULE_KEY)
WORDS: dict[str, CombinedWord] = {
    PER_DEVICE: CombinedWord(
        float,
        "4",
        "MaxText: samples per device in one forward and backward pass. Times the devices that share"
        " a sample, it is `data.micro_batch_size`; times all devices and"
        " `gradient_accumulation_steps`, it is `model.global_batch_size`.",
        replaces=(*_RAMPS, *RAMP_SETTINGS),
    ),
    ENABLE: CombinedWord(
        bool,
        "true",
        "MaxText: whether the batch ramps up. `true` sets `model.rampup_batch_size`,"
        " `rampup.semantics=maxtext`, `rampup.node_policy=fixed` and `rampup.micro_batch=largest`;"
        " `false` sets `model.rampup_batch_size=null`.",
        replaces=_RAMPS,
    ),
    START: CombinedWord(
        float,
        "4",
        "MaxText: samples per device at the start of the ramp. Times all devices, it is the start"
        " in `model.rampup_batch_size`.",
        replaces=_RAMPS,
    ),
    INCREMENT: CombinedWord(
        float,
        "2",
        "MaxText: samples per device that each stage of the ramp adds. Times all devices, it is the"
        " increment in `model.rampup_batch_size`.",
        replaces=_RAMPS,
    ),
    RAMP_SAMPLES: CombinedWord(
        int,
        "500",
        "MaxText: samples of the whole ramp. They are the samples in `model.rampup_batch_size`.",
        replaces=_RAMPS,
    ),
}
"""MaxText's batch size per device and its words for a ramp."""
ACCUMULATION = "gradient_accumulation_steps"
SUGGESTED = (MICRO_KEY, STAGE_MICRO_KEY, SEMANTICS_KEY, POLICY_KEY, MICROBATCHES_KEY)
"""Keys for which MaxText's words are only a suggestion: an explicit setting overrides them."""
DEFAULTS = {PER_DEVICE: 12.0, START: 4.0, INCREMENT: 2.0, RAMP_SAMPLES: 500}


def read_batch(
    words: Mapping[str, Any],
    *,
    num_devices: int,
    model_parallel_size: int,
    settings: Mapping[str, Any],
    one_micro_batch: bool = False,
) -> dict[str, Any]:
    """Returns what MaxText's words mean in our settings, by canonical key.

    Sizes count per device. If the model is split over `m` devices, a data-parallel rank therefore
    has `m` times as many samples. As in MaxText, a ramp in these words runs on all devices
    throughout, and a rank takes its samples of a step in one micro batch, which grows.

    Args:
        words: values by name in `WORDS`; None or absent if not given.
        settings: canonical settings given beside the words.
        one_micro_batch: a ramp has one micro batch: the largest that divides every batch size.

    Raises:
        UsageError: a word is missing, or a batch is not whole.
    """
    if num_devices < 1 or num_devices % max(1, model_parallel_size):
        return {}  # The plan refuses this fleet and names its keys.
    meant: dict[str, Any] = {}
    per_device, accumulate = words.get(PER_DEVICE), settings[ACCUMULATE_KEY]
    if per_device is not None:
        samples = to_samples(
            PER_DEVICE,
            per_device,
            num_devices=num_devices,
            model_parallel_size=model_parallel_size,
        )
        meant[GLOBAL_KEY] = samples * (accumulate or 1)
    _check_enabled(words)
    if words.get(ENABLE):
        target = meant.get(GLOBAL_KEY, settings[GLOBAL_KEY])
        _check_ramp_words(words, target=target, accumulate=accumulate)
        ramp, unit = _translate_ramp(
            words, target, num_devices=num_devices, model_parallel_size=model_parallel_size
        )
        if one_micro_batch:
            return meant | ramp | {MICRO_KEY: unit}
        if (stages := settings[PIPELINE_SIZE_KEY]) > 1 and unit % stages == 0:
            ramp[MICROBATCHES_KEY] = stages
        largest = max(1, target * model_parallel_size // num_devices)
        return meant | ramp | {MICRO_KEY: largest, STAGE_MICRO_KEY: LARGEST}
    if words.get(ENABLE) is False:
        meant[RAMP_KEY] = None
    if per_device is not None:
        meant[MICRO_KEY] = _samples_per_rank(per_device, model_parallel_size)
        if settings[PIPELINE_SIZE_KEY] > 1:
            meant[MICROBATCHES_KEY] = settings[PIPELINE_SIZE_KEY]
    return meant


def _check_enabled(words: Mapping[str, Any]) -> None:
    given = [word for word in RAMP_WORDS if words.get(word) is not None]
    if given and words.get(ENABLE) is None:
        raise UsageError(
            f"{given[0]}={words[given[0]]} without {ENABLE}: MaxText would ignore it",
            keys=(given[0], ENABLE),
            remedy=set_to(ENABLE, True),
        )


def _samples_per_rank(per_device: float, model_parallel_size: int) -> int:
    per_rank = as_written(per_device) * model_parallel_size
    if per_rank.denominator > 1:
        raise UsageError(
            f"{PER_DEVICE}={per_device} x {model_parallel_size} model-parallel devices is"
            f" {decimal(per_rank)} samples per data-parallel rank, which is not whole",
            keys=(
                PER_DEVICE,
                "parallel.tensor_parallel_size",
                PIPELINE_SIZE_KEY,
                "parallel.context_parallel_size",
            ),
            remedy=set_to(PER_DEVICE, *_nearest_per_device(per_rank, model_parallel_size)),
        )
    return int(per_rank)


def to_samples(
    word: str, per_device: float, *, num_devices: int, model_parallel_size: int = 1
) -> int:
    """Returns the samples on all devices.

    Args:
        model_parallel_size: devices that share one sample; suggested sizes are whole on them.

    Raises:
        UsageError: the size is not above zero, or the samples are not whole.
    """
    exact = as_written(per_device)
    samples = num_devices * exact
    if samples > 0 and samples.denominator == 1:
        return int(samples)
    problem = (
        "is not above zero"
        if samples <= 0
        else f"x {num_devices} devices is {decimal(samples)} samples, which is not whole"
    )
    sizes = _nearest_per_device(exact * model_parallel_size, model_parallel_size)
    raise UsageError(
        f"{word}={decimal(exact)} {problem}",
        keys=(word, *FLEET_KEYS),
        remedy=set_to(word, *sizes),
    )


def _nearest_per_device(per_rank: Fraction, model_parallel_size: int) -> list[str]:
    """Returns the nearest sizes per device that are whole on every rank and have a decimal."""
    below = max(1, int(per_rank))
    nearest: list[Fraction] = []
    for counts in (range(below, 0, -1), range(below + 1, below + 1 + model_parallel_size)):
        sizes = (Fraction(count, model_parallel_size) for count in counts)
        nearest += islice(filter(is_decimal, sizes), 1)
    return [decimal(size) for size in nearest]


def _sizes_that_fit(
    word: str, words: Mapping[str, Any], target: int, num_devices: int, data_ranks: int
) -> list[str]:
    """Returns the nearest starts or increments with which a ramp reaches its target, per device.

    Empty if the other of the two is wrong as well.
    """
    start, increment = (as_written(words[each]) * num_devices for each in (START, INCREMENT))
    if word == START:
        if increment <= 0 or increment % data_ranks or target % data_ranks:
            return []
        below = target - ceil((target - start) / increment) * increment
        fitting = [one for one in (below, below + increment) if 0 < one < target]
    else:
        rise = target - start
        if start <= 0 or rise <= 0 or start % data_ranks or rise % data_ranks:
            return []
        wanted = max(1, int(increment / data_ranks))
        counts = nearest_divisors(wanted, int(rise / data_ranks))
        fitting = [Fraction(count * data_ranks) for count in counts]
    sizes = [one / num_devices for one in fitting]
    return [decimal(size) for size in sizes if is_decimal(size)]


def _check_ramp_words(
    words: Mapping[str, Any], *, target: int | None, accumulate: int | None
) -> None:
    missing = [word for word in RAMP_WORDS if words.get(word) is None]
    if target is None:
        missing.append(PER_DEVICE)
    if missing:
        verb, defaults = ("is", "default") if len(missing) == 1 else ("are", "defaults")
        examples = {word: DEFAULTS[word] for word in missing}
        raise UsageError(
            f"{ENABLE}=true, but {' and '.join(missing)} {verb} not given",
            keys=(ENABLE, *missing),
            remedy=set_together(examples, note=f" (MaxText's {defaults})"),
        )
    if words[RAMP_SAMPLES] < 0:
        raise UsageError(
            f"{RAMP_SAMPLES}={words[RAMP_SAMPLES]} is below 0",
            keys=(RAMP_SAMPLES,),
            remedy=set_to(RAMP_SAMPLES, DEFAULTS[RAMP_SAMPLES]),
        )
    if (accumulate or 1) > 1:
        raise UsageError(
            f"{ENABLE}=true cannot be combined with {ACCUMULATE_KEY}={accumulate}",
            keys=(ENABLE, ACCUMULATE_KEY),
            remedy=[set_to(ACCUMULATE_KEY, None), f"{RAMP_KEY} with {SEMANTICS_KEY}=maxtext"],
        )


def _translate_ramp(
    words: Mapping[str, Any], target: int, *, num_devices: int, model_parallel_size: int
) -> tuple[dict[str, Any], int]:
    """Returns the settings of a ramp, and the samples that every rank's share is a multiple of.

    Args:
        target: samples of a step at the end of the ramp.
    """
    data_ranks = num_devices // model_parallel_size
    samples = {}
    for word in (START, INCREMENT):
        try:
            samples[word] = to_samples(
                word,
                words[word],
                num_devices=num_devices,
                model_parallel_size=model_parallel_size,
            )
        except UsageError as error:
            if sizes := _sizes_that_fit(word, words, target, num_devices, data_ranks):
                error.remedies = (set_to(word, *sizes),)
            raise
    start, increment = samples[START], samples[INCREMENT]
    unit = gcd(start, increment)
    if unit % data_ranks:
        multiple = decimal(Fraction(data_ranks, num_devices))
        raise UsageError(
            f"the ramp from {start} in steps of {increment} samples is not whole"
            f" on each of {data_ranks} data-parallel ranks",
            keys=(START, INCREMENT, *FLEET_KEYS),
            remedy=f"{START} and {INCREMENT} in multiples of {multiple}",
        )
    rise = target - start
    if rise > 0 and rise % increment and target % data_ranks == 0:
        raise UsageError(
            f"the ramp from {start} to {target} samples rises by {rise}, which is not a multiple"
            f" of {INCREMENT}={decimal(as_written(words[INCREMENT]))} x {num_devices} devices ="
            f" {increment}",
            keys=(START, INCREMENT, PER_DEVICE, *FLEET_KEYS),
            remedy=set_to(
                INCREMENT, *_sizes_that_fit(INCREMENT, words, target, num_devices, data_ranks)
            ),
        )
    ramp = {
        RAMP_KEY: [start, increment, words[RAMP_SAMPLES]],
        SEMANTICS_KEY: "maxtext",
        POLICY_KEY: "fixed",
        ACCUMULATE_KEY: None,  # MaxText takes a step's samples in one pass, whatever their number.
    }
    return ramp, unit // data_ranks


def check_counts(layers: L) -> tuple[L, tuple[str, ...]]:
    """Checks that reinforcement learning does not count samples. Returns the layers, and no notes.

    Raises:
        UsageError: a word does.
    """
    counted = given(layers, (*WORDS, ACCUMULATION))
    if counted and layers.entry(GENERATIONS_KEY).value is not None:
        word, value = next(iter(counted.items()))
        raise UsageError(
            f"{word}={shown(value)} is a word of pretraining, and reinforcement learning counts"
            " prompts and pairs",
            keys=(*counted, *([ACCUMULATE_KEY] if ACCUMULATION in counted else [])),
            remedy=f"{PROMPTS_KEY}, {PAIRS_KEY} or {RAMP_KEY} instead",
        )
    return layers, ()


def settle_batch(layers: L) -> tuple[L, tuple[str, ...]]:
    """Returns layers in which our keys have what the words for a batch and a ramp mean, and notes.

    A note says which batch of a recipe or file they replace.

    Raises:
        UsageError: as `read_batch`, or one of our keys is given with another value.
    """
    words = given(layers, WORDS)
    if _is_ramp_ended(layers, words):
        words = {word: value for word, value in words.items() if word == PER_DEVICE}
    if not words:
        return layers, ()
    sources = [word for word in words if word != PER_DEVICE] or [PER_DEVICE]
    source = max(sources, key=lambda word: (layers.precedence(word), word == ENABLE))
    num_devices, parallel = fleet_of(layers)
    meant = read_batch(
        words,
        num_devices=num_devices,
        model_parallel_size=parallel.model_parallel_size,
        settings=layers.values(),
        one_micro_batch=_is_set_as_near(layers, STAGE_MICRO_KEY, source, LARGEST),
    )
    notes: tuple[str, ...] = ()
    for key, value in meant.items():
        counts_batch = PER_DEVICE in words and (key == GLOBAL_KEY or not words.get(ENABLE))
        word = PER_DEVICE if counts_batch else source
        if not _is_set_as_near(layers, key, word, value):
            if key == GLOBAL_KEY:
                factors = f"{word}={words[word]:g} x {num_devices} devices"
                accumulation = layers.entry(ACCUMULATE_KEY)
                if (accumulation.value or 1) > 1:
                    factors += f" x {accumulation.by or ACCUMULATE_KEY}={accumulation.value}"
                notes = _replacement(layers, factors, value)
            layers = layers.decided(key, word, value)
        elif key not in SUGGESTED and not (key == GLOBAL_KEY and ENABLE not in words):
            raise contradiction(layers, key, value, [word])
    return layers, notes


def _is_ramp_ended(layers: Layers, words: Mapping[str, Any]) -> bool:
    """Returns whether the ramp that words describe is ended by null, nearer to the user.

    Raises:
        UsageError: null is as near to the user as the words.
    """
    ramp, near = layers.entry(RAMP_KEY), layers.precedence(RAMP_KEY)
    if not words.get(ENABLE) or ramp.value is not None or not near:
        return False
    nearest = max(map(layers.precedence, words.keys() - {PER_DEVICE}))
    if near == nearest and ramp.by is None:
        raise UsageError(
            f"{ENABLE}=true ramps the batch up, but {RAMP_KEY}=null is given",
            keys=(ENABLE, RAMP_KEY),
            remedy="one of them",
        )
    return near > nearest


def _is_set_as_near(layers: Layers, key: str, word: str, value: Any) -> bool:
    """Returns whether a key is set to another value at least as near to the user as the word."""
    if key == ACCUMULATE_KEY:
        # `read_batch` refuses a value above 1, and 1 does not fit the new micro batch.
        return False
    near = layers.precedence(key)
    return 0 < near >= layers.precedence(word) and layers.entry(key).value not in (None, value)


def settle_accumulation(layers: L) -> tuple[L, tuple[str, ...]]:
    """Replaces a batch that is set less near to the user than MaxText's word for accumulation.

    As in MaxText, the batch then follows from the micro batch, the ranks and the accumulation.
    """
    values, accumulate = layers.values(), layers.values().get(ACCUMULATION)
    micro, (num_devices, parallel) = values[MICRO_KEY], fleet_of(layers)
    ranks, rest = divmod(num_devices, parallel.model_parallel_size)
    if (
        None in (values[GLOBAL_KEY], micro, accumulate)
        or layers.precedence(ACCUMULATE_KEY) != layers.precedence(ACCUMULATION)
        or layers.precedence(GLOBAL_KEY) >= layers.precedence(ACCUMULATION)
        or any(values.get(key) for key in (PER_DEVICE, ENABLE, SCHEDULE_KEY))
        or rest
    ):
        return layers, ()
    batch = micro * ranks * accumulate
    if batch < 1 or batch == values[GLOBAL_KEY]:  # a size below one is refused as it was typed
        return layers, ()
    factors = f"{ACCUMULATION}={accumulate} x {MICRO_KEY}={micro} x {ranks} data-parallel ranks"
    return layers.decided(GLOBAL_KEY, ACCUMULATION, batch), _replacement(layers, factors, batch)


def _replacement(layers: Layers, factors: str, samples: int) -> tuple[str, ...]:
    entry = layers.entry(GLOBAL_KEY)
    if entry.value in (None, samples):
        return ()
    return (
        f"{factors} = {samples} samples replaces {GLOBAL_KEY}={shown(entry.value)} ({entry.place})",
    )


def bound_by(word: str, key: str) -> tuple[str, ...]:
    """Returns the keys that cannot be set beside a word which has decided a key."""
    if key in SUGGESTED:
        return ()
    # Accumulation multiplies the batch per device.
    return (key, ACCUMULATE_KEY) if (word, key) == (PER_DEVICE, GLOBAL_KEY) else (key,)


def write(source: Source) -> Translation:
    """Returns a batch in MaxText's words."""
    plan, stage, ramp = source.plan, source.stage, source.ramp
    parallel, devices = plan.fleet.parallel, stage.world_size
    per_pass = stage.micro_batch_size * stage.data_parallel_size
    micro_batches = max(1, plan.global_batch_size // per_pass)
    if ramp and plan.micro_batch_rule.varies:
        micro_batches = max(one.accumulate_grad_batches for one in plan.stages)
    accumulate = 1 if ramp else micro_batches
    sizes = {PER_DEVICE: Fraction(plan.global_batch_size, devices * accumulate)}
    if ramp:
        sizes |= {START: Fraction(ramp[0], devices), INCREMENT: Fraction(ramp[1], devices)}
    axes = {
        "tensor": parallel.tensor,
        "pipeline": parallel.pipeline,
        "context": parallel.context,
    }
    if (shard := source.data_parallel_shard_size) is not None:
        axes |= {"fsdp": shard, "data": FILLS}
    words = {
        PER_DEVICE: float(sizes[PER_DEVICE]),
        ACCUMULATION: accumulate,
        ENABLE: True if ramp else None,
        START: float(sizes[START]) if ramp else None,
        INCREMENT: float(sizes[INCREMENT]) if ramp else None,
        RAMP_SAMPLES: ramp[2] if ramp else None,
        "num_pipeline_microbatches": source.num_pipeline_microbatches,
        "expansion_factor_real_data": source.expansion_factor_real_data,
        "max_target_length": plan.sequence_length,
        "steps": plan.steps,
    } | {f"ici_{axis}_parallelism": size for axis, size in axes.items()}
    unsaid = (
        *differences(source, "MaxText", semantics="maxtext", has_micro_batches=True),
        *_pass_differences(source, micro_batches=micro_batches, accumulate=accumulate),
        *_decimal_differences(sizes, devices),
    )
    return Translation(words=to_assignments(words), unsaid=unsaid)


def _pass_differences(source: Source, *, micro_batches: int, accumulate: int) -> Iterator[str]:
    """Returns the differences in how MaxText splits a step into passes and microbatches."""
    if source.ramp and micro_batches > 1:
        yield (
            "MaxText takes a step's samples in one pass;"
            f" here each rank takes {micro_batches} micro batches"
        )
    stages = source.plan.fleet.parallel.pipeline
    microbatches = source.num_pipeline_microbatches or stages
    samples = source.plan.global_batch_size // accumulate
    if stages > 1 and samples % microbatches:
        yield (
            f"MaxText's pipeline splits a pass into {microbatches} microbatches,"
            f" and {samples} samples do not divide into them"
        )


def _decimal_differences(sizes: Mapping[str, Fraction], devices: int) -> Iterator[str]:
    """Returns the differences of sizes per device that MaxText does not read exactly."""
    for word, size in sizes.items():
        written = float(size)
        if not is_decimal(size):
            yield f"{word} is exactly {size}, which no decimal equals"
        elif int(devices * written) != devices * size:
            yield f"MaxText truncates {devices} x {word}={written} to {int(devices * written)}"


MAXTEXT = System(
    spellings={
        ACCUMULATION: ACCUMULATE_KEY,
        "expansion_factor_real_data": "data.expansion_factor_real_data",
        "num_pipeline_microbatches": MICROBATCHES_KEY,
    },
    combined=WORDS | maxtext_mesh.WORDS,
    decides=maxtext_mesh.KEYS,
    settles=(check_counts, maxtext_mesh.settle_mesh, settle_batch, settle_accumulation),
    write=write,
    derived={
        **dict.fromkeys(
            ("global_batch_to_load", "global_batch_size_to_load"),
            (
                "MaxText: samples that are loaded for an optimiser step: at least one per device"
                " and pass, times `data.expansion_factor_real_data`.",
                (GLOBAL_KEY, "data.expansion_factor_real_data"),
            ),
        ),
        **dict.fromkeys(
            ("global_batch_to_train", "global_batch_size_to_train_on"),
            (
                "MaxText: samples that an optimiser step trains on. Here:"
                " `model.global_batch_size`.",
                (GLOBAL_KEY, PER_DEVICE),
            ),
        ),
        "micro_batch_size_to_train_on": (
            "MaxText: samples that all devices train on in one forward and backward pass. In"
            " MaxText's ramp, a step is one pass.",
            (MICRO_KEY, PER_DEVICE),
        ),
    },
    remarks={
        ACCUMULATION: (
            "Replaces a recipe's `model.global_batch_size` by the product of micro batch,"
            " data-parallel ranks and passes."
        )
    },
)
