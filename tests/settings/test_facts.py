from dataclasses import dataclass

import pytest

from rampcli.settings.attributes import Section
from rampcli.settings.by_key import changes, facts_of, may_change, settings
from rampcli.settings.facts import IDENTITY, LEARNING_RATE, LENGTH, RESULT, SPEED, Facts
from rampcli.settings.fields import setting


def test_a_setting_that_does_not_say_what_it_changes_cannot_be_declared():
    with pytest.raises(TypeError, match="facts"):

        @dataclass(kw_only=True, slots=True)
        class Undeclared(Section):
            size: int = setting(1, "A size.")


def test_each_setting_has_facts_and_says_why_phases_and_reinforcement_learning_leave_it_out():
    for key, one in settings().items():
        assert isinstance(one.facts, Facts), key
        assert one.facts.not_in_phases != ""
        assert one.facts.not_in_rl is None or one.facts.not_in_rl.why
        assert hash(one.facts) == hash(facts_of(key)), key


def test_a_setting_of_a_phase_changes_what_it_changes_in_the_run():
    assert changes("optim.lr", LEARNING_RATE)
    assert changes("phases.long.optim.lr", LEARNING_RATE)
    assert not changes("phases.long.optim.lr", SPEED | LENGTH)


def test_a_word_of_another_system_and_a_setting_of_an_extension_have_facts_too():
    assert changes("data.global_batch_size", IDENTITY)
    assert changes("schedule.cooldown.floor", LEARNING_RATE)
    assert changes("optim.lion.beta1", RESULT)
    assert may_change("schedule.cooldown.floor")
    assert not may_change("optim.lion.beta1")


def test_a_phase_has_no_phases():
    assert may_change("optim.lr")
    assert not may_change("phases.long.optim.lr")


def test_an_unknown_key_changes_nothing_and_is_not_for_phases():
    assert facts_of("no.such").changes.value == 0
    assert not may_change("no.such")
