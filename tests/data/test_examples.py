import json
import os
import subprocess
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rampcli.data.chat_template import Message
from rampcli.data.examples import (
    ENDLESS,
    TASK_CHARACTERS,
    TASKS,
    TRAINING_SIDE,
    UNSPLIT,
    VALIDATION_SIDE,
    Split,
    open_examples,
    pose,
    read_file_examples,
)
from rampcli.errors import UsageError
from small_corpora import data_config

PROMPTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=30)
SHARES = st.tuples(st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))
HOSTILE = {
    "an unfinished object": (b'{"prompt": "x", "resp', "not JSON"),
    "no object": (b'["prompt", "response"]', "not a JSON object"),
    "no prompt": (b'{"response": "x"}', "there is no prompt"),
    "no response": (b'{"prompt": "x"}', "there is no response"),
    "a null response": (b'{"prompt": "x", "response": null}', "there is no response"),
    "a prompt that is null": (b'{"prompt": null, "response": "x"}', "prompt is not a string"),
    "a prompt that is a number": (b'{"prompt": 4, "response": "x"}', "prompt is not a string"),
    "a response that is a list": (
        b'{"prompt": "x", "response": ["x"]}',
        "response is not a string",
    ),
    "a repeated field": (b'{"prompt": "x", "prompt": "y", "response": ""}', "appears twice"),
    "a repeated inner field": (b'{"prompt": "x", "response": "", "a": {"b": 1, "b": 1}}', "twice"),
    "bytes that are not UTF-8": (b'{"prompt": "\xff", "response": "x"}', "can't decode byte 0xff"),
    "half a character": (b'{"prompt": "\\ud800", "response": "x"}', "not valid Unicode"),
    "a number that is not JSON": (b'{"prompt": "x", "response": "", "a": NaN}', "NaN"),
    "an endless number": (b'{"prompt": "x", "response": "", "a": ' + b"9" * 5000 + b"}", "digits"),
    "endless nesting": (b'{"prompt": "x", "a": ' + b"[" * 100_000, "too deeply"),
    "closed nesting": (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deeply"),
    "a line of 16 MB": (b'{"prompt": "' + b"x" * (16 << 20) + b'"}', "more than 16 MiB"),
    "an escape sequence": (b'{"prompt": "x", "\x1b[2J": 1}', "not JSON"),
    "two objects": (b'{"prompt": "x", "response": "x"} {}', "not JSON"),
}


def write(path, prompts, **fields):
    lines = (json.dumps({"prompt": prompt, "response": "x"} | fields) for prompt in prompts)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def prompts_of(examples):
    return [examples[index].prompt for index in range(len(examples))]


config = partial(data_config, "pairs")


@settings(max_examples=25)
@given(prompts=PROMPTS, shares=SHARES, data=st.data())
def test_a_prompt_is_on_one_side_whatever_the_order_of_the_lines(
    prompts, shares, data, tmp_path_factory
):
    path, split = tmp_path_factory.mktemp("pairs") / "a.jsonl", Split.of(shares)
    sides = read_file_examples(write(path, prompts), split, needs_responses=True)
    assert sorted(prompt for side in sides for prompt in prompts_of(side)) == sorted(prompts)
    for number, side in enumerate(sides):
        assert [split.side_of(prompt) for prompt in prompts_of(side)] == [number] * len(side)
        assert shares[number] or not len(side)
    shuffled = write(path, data.draw(st.permutations(prompts)))
    again = read_file_examples(shuffled, split, needs_responses=True)
    assert [sorted(prompts_of(side)) for side in again] == [
        sorted(prompts_of(side)) for side in sides
    ]


def test_each_side_has_its_share_of_prompts_and_the_same_ones_on_every_machine():
    split = Split.of([90, 9, 1])
    sides = [split.side_of(f"prompt {number}") for number in range(5000)]
    assert 4400 < sides.count(TRAINING_SIDE) < 4600
    assert 380 < sides.count(VALIDATION_SIDE) < 520
    assert [number for number, side in enumerate(sides) if side == 2][:4] == [64, 358, 510, 522]


def test_a_split_of_everything_leaves_nothing_out():
    assert {UNSPLIT.side_of(f"{number}") for number in range(100)} == {TRAINING_SIDE}


def test_an_example_keeps_all_fields_and_its_place(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        b'\xef\xbb\xbf{"prompt": "a", "response": "b", "tests": [{"in": 1}]}\n'
        b'\n   \r\n{"prompt": "c", "answer": 5}'
    )
    [examples] = read_file_examples(tmp_path / "a.jsonl", UNSPLIT, needs_responses=False)
    first, second = examples[0], examples[1]
    assert (first.prompt, first.response) == ("a", "b")
    assert first.fields == {"prompt": "a", "response": "b", "tests": [{"in": 1}]}
    assert (second.response, second.fields["answer"]) == (None, 5)
    assert [examples.place(index) for index in (0, 1)] == [
        f"{tmp_path}/a.jsonl, line {number}" for number in (1, 4)
    ]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_is_refused_with_its_file_and_number(name, tmp_path):
    line, wrong = HOSTILE[name]
    good = b'{"prompt": "x", "response": "y"}\n'
    (tmp_path / "a.jsonl").write_bytes(good + b"\n" + line + b"\n" + good)
    with pytest.raises(UsageError) as refused:
        open_examples(config(path=str(tmp_path / "a.jsonl")), needs_responses=True)
    assert refused.value.message.startswith(f"{tmp_path}/a.jsonl, line 3: ")
    assert wrong in refused.value.message
    assert refused.value.keys == ("data.path",)


def test_responses_may_be_missing_from_prompts(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n{"prompt": "y", "response": null}\n')
    made = config(path=str(tmp_path / "a.jsonl"), split=[1, 0, 0])
    training, validation = open_examples(made, needs_responses=False)
    assert [training[index].response for index in range(2)] == [None, None]
    assert len(validation) == 0


@pytest.mark.parametrize("name", ["missing.jsonl", ".", "fifo"])
def test_what_is_not_a_file_is_refused_by_its_setting(name, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "a.jsonl").write_text('{"prompt": "x"}\n')
    made = config(path=str(tmp_path / "a.jsonl"), validation_path=str(tmp_path / name))
    with pytest.raises(UsageError) as refused:
        open_examples(made, needs_responses=False)
    assert refused.value.keys == ("data.validation_path",)


def test_a_file_for_validation_replaces_the_split(tmp_path):
    first, second = write(tmp_path / "a", map(str, range(50))), write(tmp_path / "b", ["x", "y"])
    made = config(path=str(first), validation_path=str(second))
    training, validation = open_examples(made, needs_responses=True)
    assert prompts_of(training) == [str(number) for number in range(50)]
    assert prompts_of(validation) == ["x", "y"]


def test_the_fingerprint_changes_with_the_file_and_with_the_side(tmp_path):
    prints = []
    for prompts in ("ab", "ba", "ac", "abc"):
        for shares in ([1, 0, 0], [1, 1, 0]):
            path = write(tmp_path / "a", prompts)
            sides = read_file_examples(path, Split.of(shares), needs_responses=True)
            prints += {side.fingerprint for side in sides if len(side)}
    assert len(prints) == len(set(prints))


@pytest.mark.parametrize("task", ["sort", "reverse", "add"])
def test_examples_of_a_task_are_endless_and_on_their_side(task):
    training, validation = open_examples(
        config(task=task, task_digits=3, split=[80, 10, 10]), needs_responses=True
    )
    split = Split.of([80, 10, 10])
    for side, examples in ((TRAINING_SIDE, training), (VALIDATION_SIDE, validation)):
        assert len(examples) == ENDLESS
        for index in (*range(40), ENDLESS - 1):
            example = examples[index]
            assert split.side_of(example.prompt) == side
            assert example == examples[index]
            assert example.fields == {"prompt": example.prompt, "answer": example.response}


def test_an_example_of_a_task_depends_on_the_seed_and_the_index():
    made = config(task="sort")
    training, _ = open_examples(made, needs_responses=True)
    made.seed = 5
    reseeded, _ = open_examples(made, needs_responses=True)
    prompts = {one[index].prompt for one in (training, reseeded) for index in range(50)}
    assert len(prompts) == 100
    assert training.fingerprint != reseeded.fingerprint


def test_a_task_without_a_share_for_validation_has_no_examples_for_it():
    _, validation = open_examples(config(task="sort", split=[1, 0, 0]), needs_responses=True)
    assert len(validation) == 0


def test_a_share_that_no_prompt_falls_into_is_refused():
    _, validation = open_examples(
        config(task="sort", task_digits=1, split=[1, 1e-9, 0]), needs_responses=True
    )
    with pytest.raises(UsageError, match="too few prompts for validation") as refused:
        validation[0]
    assert refused.value.keys == ("data.task_digits", "data.split")


def said(*messages):
    return [{"role": role, "content": content} for role, content in messages]


def read(tmp_path, fields, *, needs_responses=True):
    (tmp_path / "a.jsonl").write_text(json.dumps(fields), encoding="utf-8")
    [examples] = read_file_examples(tmp_path / "a.jsonl", UNSPLIT, needs_responses=needs_responses)
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
        read_file_examples(path, UNSPLIT, needs_responses=True)
    _, command, _ = refused.value.remedy.split("`")
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    [found] = read_file_examples(tmp_path / "NEW.jsonl", UNSPLIT, needs_responses=True)
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


POSED = st.fixed_dictionaries(
    {
        "digits": st.integers(1, 64),
        "seed": st.integers(0, 2**62),
        "index": st.integers(0, 2**40),
        "attempt": st.integers(0, 1000),
    }
)


@given(posed=POSED)
def test_answers_are_right_and_as_long_as_all_others_of_the_task(posed):
    digits = posed["digits"]
    prompt, answer = pose("sort", **posed)
    assert len(prompt) == digits + 1
    assert list(answer) == sorted(prompt.removesuffix("="))
    prompt, answer = pose("reverse", **posed)
    assert len(prompt) == digits + 1
    assert f"{answer[::-1]}=" == prompt
    prompt, answer = pose("add", **posed)
    first, second = prompt.removesuffix("=").split("+")
    assert len(first) == len(second) == digits
    assert int(answer) == int(first) + int(second)
    assert len(answer) == digits + 1


@given(posed=POSED)
def test_prompts_and_answers_have_the_characters_of_tasks_only(posed):
    for name in TASKS:
        assert set("".join(pose(name, **posed))) <= set(TASK_CHARACTERS)


def test_a_prompt_depends_on_every_argument_and_on_nothing_else():
    facts = {"digits": 20, "seed": 1, "index": 2, "attempt": 3}
    one = pose("sort", **facts)
    assert pose("sort", **facts) == one == ("96669367562576422829=", "22223455666666778999")
    others = [pose("sort", **facts | {name: 9}) for name in facts]
    assert len({one, pose("reverse", **facts), *others}) == 6


def test_digits_are_uniformly_distributed():
    text = "".join(
        pose("sort", digits=8, seed=0, index=index, attempt=0)[0][:8] for index in range(2000)
    )
    counts = [text.count(str(digit)) for digit in range(10)]
    # Six standard deviations of a binomial distribution.
    assert max(abs(count - 1600) for count in counts) < 6 * (16_000 * 0.1 * 0.9) ** 0.5
