import pytest

from rampcli.machine.limited_process import LimitError, ask

CHAT = "rampcli.data.render_chat"


def test_a_module_answers_a_request():
    request = {"template": "{{ x }}", "variables": [{"x": "é"}, {"x": 2}]}
    assert ask(CHAT, request) == {"texts": ["é", "2"]}


def test_a_module_that_fails_is_reported_with_its_last_line():
    with pytest.raises(LimitError, match=r"exit code 1: .*No module named rampcli\.missing"):
        ask("rampcli.missing", {})


def test_an_answer_that_takes_too_long_is_given_up():
    with pytest.raises(LimitError, match=r"it was not rendered within 0\.001 s"):
        ask(CHAT, {}, wall_s=0.001)
