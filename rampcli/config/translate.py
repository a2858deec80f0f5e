"""Decides between words: those whose meaning depends on others, and settings that compete."""

from collections.abc import Collection, Iterator
from typing import Any

from rampcli.batch.node_policies import DEFAULT_POLICY, NODES_KEY, POLICY_KEY
from rampcli.batch.plan import GLOBAL_KEY
from rampcli.batch.quantities import listed
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.config.layers import Entry, Layer, Precedence, Stack, sources_named
from rampcli.config.phases import run_stack
from rampcli.config.references import named_in
from rampcli.config.written import Written, with_references_anew
from rampcli.errors import UsageError, set_to, shown
from rampcli.settings.by_key import alternatives, settings
from rampcli.words import FOREIGN, LAYER_CHECKS, SETTLING, SPELLINGS
from rampcli.words.translation import given

_MOST_ROUNDS = 5
"""How often references are resolved after words that follow from references."""


def with_decided_references(stack: Stack) -> Stack:
    """Resolves references with the values that remain after words are translated.

    A word may decide what a reference names, and another spelling may set it. References in a
    phase name settings of the run, as all references do.

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
        key = SPELLINGS.get(name, name)
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
    written = stack.written
    values: dict[str, Any] = {}
    for name in named:
        key = SPELLINGS.get(name, name)
        if key not in settings():
            continue
        entry = translated.entry(key)
        if entry.reference is None or entry.reference != written.get(name):
            values[name] = entry.value
    return Written.of({**written, **values})


def translate(stack: Stack) -> tuple[Stack, tuple[str, ...]]:
    """Returns the layers with our keys in place of words that depend on others, and notes.

    A key gets the precedence of the word that decides it. The words then have no value.

    Raises:
        UsageError: words that contradict our keys, or a batch that is not whole.
    """
    before = stack.entry(GLOBAL_KEY).value
    notes: tuple[str, ...] = ()
    with sources_named(stack):
        for check in LAYER_CHECKS:
            check(stack)
    for settle in SETTLING:
        with sources_named(stack):
            stack, more = settle(stack)
            notes += more
    if stack.entry(GLOBAL_KEY).value != before:
        notes += tuple(_left_behind(stack))
    cleared = {word: Entry(None, word, by=word) for word in given(stack, FOREIGN)}
    return stack.above(Layer("translated", Precedence.USER, cleared)), notes


def _left_behind(stack: Stack) -> Iterator[str]:
    """Yields a note on each setting that follows from the batch before other words decided it.

    Files of other systems compute such settings, the samples of a validation among them.
    """
    for key in settings():
        entry = stack.entry(key)
        for word, one in entry.words:
            if key != GLOBAL_KEY and SPELLINGS.get(word, word) == GLOBAL_KEY:
                yield (
                    f"{key}={shown(entry.value)} follows from {word}={shown(one.value)}"
                    f" ({one.place}), not from {stack.entry(GLOBAL_KEY).by}"
                )


def without_alternatives(stack: Stack) -> Stack:
    """Returns the layers with null for each setting that is replaced by one nearer to the user.

    Alternatives that are equally near stay, and the checks refuse them.
    """
    for keys in alternatives():
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

    A policy that a word suggests is replaced by a list that is as near to the user.
    """
    if stack.entry(NODES_KEY).value is None:
        return stack
    nodes, policy = stack.precedence(NODES_KEY), stack.precedence(POLICY_KEY)
    if policy > nodes:
        return stack.decided(NODES_KEY, POLICY_KEY, None)
    if policy < nodes or stack.entry(POLICY_KEY).by is not None:
        return stack.decided(POLICY_KEY, NODES_KEY, DEFAULT_POLICY)
    return stack
