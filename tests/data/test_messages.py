import json
import subprocess

import pytest

from rampcli.data.examples import EVERYTHING, read_file_examples
from rampcli.data.messages import Message
from rampcli.errors import UsageError


def said(*messages):
    return [{"role": role, "content": content} for role, content in messages]


def read(tmp_path, fields, *, needs_responses=True):
    (tmp_path / "a.jsonl").write_text(json.dumps(fields), encoding="utf-8")
    [examples] = read_file_examples(
        tmp_path / "a.jsonl", EVERYTHING, needs_responses=needs_responses
    )
    return examples[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "2+2=", "response": "4"},
        {"messages": said(("user", "2+2="), ("assistant", "4"))},
        {"prompt": "2+2=", "messages": said(("user", "2+2="), ("assistant", "4"))},
        {"conversations": [{"from": "human", "value": "2+2="}, {"from": "gpt", "value": "4"}]},
        {"instruction": "2+2=", "input": "", "output": "4"},
        {"instruction": "2+2=", "output": "4"},
    ],
)
def test_a_pair_is_the_same_in_every_form(tmp_path, fields):
    example = read(tmp_path, fields)
    assert (example.prompt, example.response, example.messages) == ("2+2=", "4", None)
    assert example.fields == {"response": "4"} | fields


def test_an_instruction_and_its_input_are_one_prompt(tmp_path):
    example = read(tmp_path, {"instruction": "Add:", "input": "2, 2", "output": "4"})
    assert (example.prompt, example.response) == ("Add:\n\n2, 2", "4")


def test_a_conversation_is_split_by_what_the_user_says_first(tmp_path):
    messages = said(
        ("system", "Count."),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "3"),
        ("assistant", ""),
    )
    example = read(tmp_path, {"messages": messages})
    assert (example.prompt, example.response) == ("one", "")
    assert example.messages == tuple(Message(one["role"], one["content"]) for one in messages[:-1])


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"messages": []}, "messages is not a list of messages"),
        ({"messages": {"role": "user"}}, "messages is not a list of messages"),
        ({"messages": ["hello"]}, "message 1: not a JSON object"),
        ({"messages": said(("user", "x"), ("assistant", None))}, "message 2: content is not a"),
        ({"messages": [{"role": "user"}]}, "message 1: there is no content"),
        ({"messages": said(("user", "\ud800"))}, "message 1: content is not valid Unicode"),
        ({"messages": said(("user", "x"))}, "there is no response"),
        ({"messages": said(("assistant", "x"))}, "no message before the response"),
        ({"messages": said(("user", "x"), ("assistant", "y")), "tools": [{}]}, "tools are not"),
        (
            {"messages": [*said(("user", "x")), {"role": "assistant", "content": "", "weight": 1}]},
            "message 2: 'weight' is not supported",
        ),
        ({"instruction": "x", "input": 5, "output": "y"}, "input is not a string"),
        ({"instruction": "x"}, "there is no response"),
    ],
)
def test_a_line_that_is_not_understood_as_a_whole_is_refused(tmp_path, fields, wrong):
    with pytest.raises(UsageError) as refused:
        read(tmp_path, fields)
    assert refused.value.message.startswith(f"{tmp_path}/a.jsonl, line 1: ")
    assert wrong in refused.value.message


def test_the_advice_for_a_file_that_is_one_array_makes_lines_of_it(tmp_path):
    path = tmp_path / "it's.json"
    path.write_text(json.dumps([{"instruction": "2+2=", "output": "4"}] * 3, indent=1))
    with pytest.raises(UsageError) as refused:
        read_file_examples(path, EVERYTHING, needs_responses=True)
    _, command, _ = refused.value.remedy.split("`")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    [found] = read_file_examples(tmp_path / "NEW.jsonl", EVERYTHING, needs_responses=True)
    assert [found[index].response for index in range(3)] == ["4"] * 3


def test_prompts_for_rewards_are_single_messages(tmp_path):
    alone = read(tmp_path, {"messages": said(("user", "2+2="))}, needs_responses=False)
    assert (alone.prompt, alone.response) == ("2+2=", None)
    with pytest.raises(UsageError, match="must be the only message"):
        read(
            tmp_path,
            {"messages": said(("system", "Add."), ("user", "2+2="))},
            needs_responses=False,
        )
