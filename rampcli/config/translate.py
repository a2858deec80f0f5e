"""Decides between words: MaxText's, whose meaning depends on others, and settings that compete."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rampcli.batch.micro_batch import LARGEST, STAGE_MICRO_KEY
from rampcli.batch.node_policies import DEFAULT_POLICY, NODES_KEY, POLICY_KEY
from rampcli.batch.pairs import GENERATIONS_KEY, PAIRS_KEY, PROMPTS_KEY
from rampcli.batch.plan import (
    ACCUMULATE_KEY,
    DEVICES_KEY,
    GLOBAL_KEY,
    MICRO_KEY,
    NUM_NODES_KEY,
    ParallelSizes,
)
from rampcli.batch.quantities import listed
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.run_settings import LENGTH_KEYS
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.config.layers import Entry, Layer, Precedence, Stack, sources_named
from rampcli.config.phases import run_stack
from rampcli.config.reading import drop_launcher_section
from rampcli.config.references import named_in
from rampcli.config.written import Written, with_references_anew
from rampcli.errors import UsageError, set_to, shown
from rampcli.settings.by_key import settings
from rampcli.words import FOREIGN, SPELLINGS, maxtext, maxtext_mesh
from rampcli.words.maxtext import ACCUMULATION, ENABLE, PER_DEVICE, SUGGESTED

ALTERNATIVES = (
    LENGTH_KEYS,
    ("optim.warmup_samples", "optim.warmup_steps"),
    (RAMP_KEY, SCHEDULE_KEY),
)
"""Settings that say one thing in different ways."""
_MOST_ROUNDS = 5
"""How often references are resolved after words that follow from references."""


def with_decided_references(stack: Stack) -> Stack:
    """Resolves references with the values that remain after MaxText's words are translated.

    MaxText's words may decide what a reference names, and another spelling may set it. References
    in a phase name settings of the run, as all references do.

    Raises:
        UsageError: a word follows from a reference to what it decides.
    """
    named = named_in(stack.written)
    if not named:
        return stack
    changed: list[str] = []
    for _ in range(_MOST_ROUNDS):
        run = run_stack(stack)
        try:
            translated = translate(run)[0]
        except UsageError:
            if changed:
                break
            return stack  # `translate` says what is wrong
        stack = with_references_anew(stack, _with_values_of(named, stack, translated))
        values, anew = run.values(), run_stack(stack).values()
        changed = [key for key in values if anew[key] != values[key]]
        if not changed:
            return stack
    with sources_named(stack):
        raise UsageError(
            f"{listed(changed)} depends on itself through a reference"
            if len(changed) == 1
            else f"{listed(changed)} depend on each other through references",
            keys=tuple(changed),
            remedy="the value itself in place of a reference",
        )


def check_named_before(stack: Stack, before: Stack) -> None:
    """Checks that no reference names a setting that was null before and has a value now.

    Files of the run, such as a tokenizer, decide it after references are resolved.

    Raises:
        UsageError: one does.
    """
    for name in sorted(named_in(before.written)):
        key = SPELLINGS.get(drop_launcher_section(name), drop_launcher_section(name))
        if key not in settings() or before.entry(key).value is not None:
            continue
        if (value := stack.entry(key).value) is not None:
            raise UsageError(
                f"a reference names {key}, which the files of the run decide",
                keys=(key,),
                remedy=set_to(key, value),
            )


def _with_values_of(named: Collection[str], stack: Stack, translated: Stack) -> Written:
    """Returns what the layers say as it was written, with the values of some keys in the end."""
    written = Written(stack.written)
    values: dict[str, Any] = {}
    for name in named:
        key = SPELLINGS.get(drop_launcher_section(name), drop_launcher_section(name))
        if key not in settings():
            continue
        entry = translated.entry(key)
        # A file of ours may have the key outside the section of NeMo's launcher.
        for place in {written.name_of(name), *written.values.keys() & {name}}:
            is_chain = entry.reference is not None and entry.reference == written.values.get(place)
            values |= {} if is_chain else {place: entry.value}
    return Written.of({**written.values, **values})


def translate(stack: Stack) -> tuple[Stack, tuple[str, ...]]:
    """Returns the layers with MaxText's words in our keys, and notes for the user.

    A key gets the precedence of the word that decides it. The words then have no value.

    Raises:
        UsageError: words that contradict our keys, or a batch that is not whole.
    """
    with sources_named(stack):
        _check_words_of_pretraining(stack)
        _check_rl_word(stack)
        stack = _translate_mesh(stack)
    given = stack.entry(GLOBAL_KEY).value
    with sources_named(stack):
        stack, notes = _translate_batch(stack)
        stack, more_notes = _translate_accumulation(stack)
    if stack.entry(GLOBAL_KEY).value != given:
        more_notes += tuple(_left_behind(stack))
    cleared = {word: Entry(None, word, by=word) for word in _given(stack, FOREIGN)}
    return stack.above(Layer("translated", Precedence.USER, cleared)), (*notes, *more_notes)


def _left_behind(stack: Stack) -> Iterator[str]:
    """Yields a note on each setting that follows from the batch before words of MaxText decided it.

    NeMo's rules compute such settings, the samples of a validation among them.
    """
    for key in settings():
        entry = stack.entry(key)
        for word, one in entry.words:
            if key != GLOBAL_KEY and SPELLINGS.get(word, word) == GLOBAL_KEY:
                yield (
                    f"{key}={shown(entry.value)} follows from {word}={shown(one.value)}"
                    f" ({one.place}), not from {stack.entry(GLOBAL_KEY).by}"
                )


def _given(stack: Stack, words: Iterable[str]) -> dict[str, Any]:
    """Returns the values of those words that are given."""
    values = stack.values()
    return {word: values[word] for word in words if values.get(word) is not None}


def _check_words_of_pretraining(stack: Stack) -> None:
    """Checks that MaxText's words for batches of samples are used in pretraining only."""
    given = _given(stack, (*maxtext.WORDS, ACCUMULATION))
    if given and stack.entry(GENERATIONS_KEY).value is not None:
        word, value = next(iter(given.items()))
        raise UsageError(
            f"{word}={shown(value)} is a word of pretraining, and reinforcement learning counts"
            " prompts and pairs",
            keys=(*given, *([ACCUMULATE_KEY] if ACCUMULATION in given else [])),
            remedy=f"{PROMPTS_KEY}, {PAIRS_KEY} or {RAMP_KEY} instead",
        )


def _check_rl_word(stack: Stack) -> None:
    """Checks that prompts are counted in reinforcement learning only."""
    batch = stack.entry(GLOBAL_KEY)
    if (
        batch.by == PROMPTS_KEY
        and batch.value is not None
        and stack.entry(GENERATIONS_KEY).value is None
    ):
        raise UsageError(
            f"{PROMPTS_KEY}={shown(batch.value)} does not apply: {GENERATIONS_KEY} is null, so"
            " nothing is generated",
            keys=(PROMPTS_KEY,),
            remedy=[f"{set_to(GLOBAL_KEY, batch.value)} in its place", "rampcli rl"],
        )


def _num_devices(stack: Stack) -> int:
    devices: int = stack.entry(NUM_NODES_KEY).value * stack.entry(DEVICES_KEY).value
    return devices


def _parallel_sizes(stack: Stack) -> ParallelSizes:
    sizes = {axis: max(1, stack.entry(key).value) for axis, key in maxtext_mesh.MODEL_AXES.items()}
    return ParallelSizes(**sizes)


def _translate_mesh(stack: Stack) -> Stack:
    words = _given(stack, maxtext_mesh.AXES)
    meant = maxtext_mesh.read_mesh(
        words, num_devices=_num_devices(stack), parallel=_parallel_sizes(stack)
    )
    for key, size in meant.items():
        used = [word for word in words if maxtext_mesh.KEYS[word] == key]
        nearest = max(used, key=lambda word: (stack.precedence(word), words[word]))
        precedence, value = stack.precedence(key), stack.entry(key).value
        if precedence is stack.precedence(nearest) and value not in (None, size):
            raise _contradiction(stack, key, size, used)
        if precedence <= stack.precedence(nearest):
            stack = stack.decided(key, nearest, size, words=used)
    return stack


def _contradiction(stack: Stack, key: str, value: Any, words: Sequence[str]) -> UsageError:
    shown_words = " x ".join(f"{word}={shown(stack.entry(word).value)}" for word in words)
    return UsageError(
        f"{shown_words} sets {key}={shown(value)}, but {shown(stack.entry(key).value)} is given",
        keys=(*words, key),
        remedy="one of them",
    )


def _translate_batch(stack: Stack) -> tuple[Stack, tuple[str, ...]]:
    """Translates the batch per device, and the words for a ramp."""
    words = _given(stack, maxtext.WORDS)
    if _ends_ramp(stack, words):
        words = {word: value for word, value in words.items() if word == PER_DEVICE}
    if not words:
        return stack, ()
    sources = [word for word in words if word != PER_DEVICE] or [PER_DEVICE]
    source = max(sources, key=lambda word: (stack.precedence(word), word == ENABLE))
    num_devices = _num_devices(stack)
    meant = maxtext.read_batch(
        words,
        num_devices=num_devices,
        model_parallel_size=_parallel_sizes(stack).model_parallel_size,
        settings=stack.values(),
        one_micro_batch=_is_set_as_near(stack, STAGE_MICRO_KEY, source, LARGEST),
    )
    notes: tuple[str, ...] = ()
    for key, value in meant.items():
        counts_batch = PER_DEVICE in words and (key == GLOBAL_KEY or not words.get(ENABLE))
        word = PER_DEVICE if counts_batch else source
        if not _is_set_as_near(stack, key, word, value):
            if key == GLOBAL_KEY:
                factors = f"{word}={words[word]:g} x {num_devices} devices"
                accumulation = stack.entry(ACCUMULATE_KEY)
                if (accumulation.value or 1) > 1:
                    factors += f" x {accumulation.by or ACCUMULATE_KEY}={accumulation.value}"
                notes = _replacement(stack, factors, value)
            stack = stack.decided(key, word, value)
        elif key not in SUGGESTED and not (key == GLOBAL_KEY and ENABLE not in words):
            raise _contradiction(stack, key, value, [word])
    return stack, notes


def _ends_ramp(stack: Stack, words: Mapping[str, Any]) -> bool:
    """Returns whether the ramp that words describe is ended by null, nearer to the user.

    Raises:
        UsageError: null is as near to the user as the words.
    """
    ramp, near = stack.entry(RAMP_KEY), stack.precedence(RAMP_KEY)
    if not words.get(ENABLE) or ramp.value is not None or near is Precedence.SCHEMA:
        return False
    nearest = max(map(stack.precedence, words.keys() - {PER_DEVICE}))
    if near is nearest and ramp.by is None:
        raise UsageError(
            f"{ENABLE}=true ramps the batch up, but {RAMP_KEY}=null is given",
            keys=(ENABLE, RAMP_KEY),
            remedy="one of them",
        )
    return near > nearest


def _translate_accumulation(stack: Stack) -> tuple[Stack, tuple[str, ...]]:
    """Replaces a batch that is set less near to the user than MaxText's word for accumulation.

    As in MaxText, the batch then follows from the micro batch, the ranks and the accumulation.
    """
    values, accumulate = stack.values(), stack.values().get(ACCUMULATION)
    micro, num_devices = values[MICRO_KEY], _num_devices(stack)
    ranks, rest = divmod(num_devices, _parallel_sizes(stack).model_parallel_size)
    if (
        None in (values[GLOBAL_KEY], micro, accumulate)
        or stack.precedence(ACCUMULATE_KEY) is not stack.precedence(ACCUMULATION)
        or stack.precedence(GLOBAL_KEY) >= stack.precedence(ACCUMULATION)
        or any(values.get(key) for key in (PER_DEVICE, ENABLE, SCHEDULE_KEY))
        or rest
    ):
        return stack, ()
    batch = micro * ranks * accumulate
    if batch < 1 or batch == values[GLOBAL_KEY]:  # a size below one is refused as it was typed
        return stack, ()
    factors = f"{ACCUMULATION}={accumulate} x {MICRO_KEY}={micro} x {ranks} data-parallel ranks"
    return stack.decided(GLOBAL_KEY, ACCUMULATION, batch), _replacement(stack, factors, batch)


def _replacement(stack: Stack, factors: str, samples: int) -> tuple[str, ...]:
    """Returns a note if a word replaces another batch, of a recipe or file."""
    entry = stack.entry(GLOBAL_KEY)
    if entry.value in (None, samples):
        return ()
    return (
        f"{factors} = {samples} samples replaces {GLOBAL_KEY}={shown(entry.value)} ({entry.place})",
    )


def _is_set_as_near(stack: Stack, key: str, word: str, value: Any) -> bool:
    """Returns whether a key is set to another value at least as near to the user as the word."""
    if key == ACCUMULATE_KEY:
        # `read_batch` refuses a value above 1, and 1 does not fit the new micro batch.
        return False
    near = stack.precedence(key) >= stack.precedence(word)
    is_set = stack.precedence(key) > Precedence.SCHEMA
    return near and is_set and stack.entry(key).value not in (None, value)


def without_alternatives(stack: Stack) -> Stack:
    """Returns the layers with null for each setting that is replaced by one nearer to the user.

    Alternatives that are equally near stay, and the checks refuse them.
    """
    for keys in ALTERNATIVES:
        chosen = [key for key in keys if stack.entry(key).value is not None]
        nearest = max(chosen, key=stack.precedence, default="")
        for key in chosen:
            if stack.precedence(key) < stack.precedence(nearest):
                stack = stack.decided(key, nearest, None)
    stack = _without_other_nodes(stack)
    has_schedule = stack.entry(SCHEDULE_KEY).value is not None
    if has_schedule and stack.precedence(GLOBAL_KEY) < stack.precedence(SCHEDULE_KEY):
        # The last size of the schedule is the batch.
        stack = stack.decided(GLOBAL_KEY, SCHEDULE_KEY, None)
    return stack


def _without_other_nodes(stack: Stack) -> Stack:
    """Returns the layers without a list of nodes or a node policy that the other replaces.

    A policy that MaxText's words suggest is replaced by a list that is as near to the user.
    """
    if stack.entry(NODES_KEY).value is None:
        return stack
    nodes, policy = stack.precedence(NODES_KEY), stack.precedence(POLICY_KEY)
    if policy > nodes:
        return stack.decided(NODES_KEY, POLICY_KEY, None)
    if policy < nodes or stack.entry(POLICY_KEY).by is not None:
        return stack.decided(POLICY_KEY, NODES_KEY, DEFAULT_POLICY)
    return stack
