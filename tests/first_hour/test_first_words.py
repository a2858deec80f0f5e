"""Command lines as a newcomer types them: each gets an answer that says how to go on."""

import json

import pytest

PLAN = ("plan", "--factory", "llama3_tiny")


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (("plan",), ("--factory llama3_tiny", "rampcli recipes")),
        (("plan", "--factory", "llama3_9b"), ("--factory llama3_8b",)),
        (("trian",), ("rampcli pretrain",)),
        ((*PLAN, "--wat-if", "seed=1"), ("--what-if", "rampcli plan --help")),
        ((*PLAN, "-f", "llama3_8b"), ("given twice: llama3_tiny and llama3_8b",)),
        ((*PLAN, "trainer.max_steps=1.5"), ("try:    trainer.max_steps=1 or 2",)),
        ((*PLAN, "seed=1e3"), ("try:    seed=1000",)),
        ((*PLAN, "trainer.max_steps=None"), ("try:    trainer.max_steps=null",)),
        ((*PLAN, "model.init_from=None"), ("try:    model.init_from=null",)),
        ((*PLAN, "optim.lr=1e-3,2e-3"), ("rampcli sweep",)),
        ((*PLAN, "--what-if", "optim.lr=1e-3,2e-3"), ("time are the same", "rampcli sweep")),
    ],
    ids=lambda value: " ".join(value[-2:]),
)
def test_a_wrong_word_is_answered_in_one_style_with_what_works(newcomer, words, answers):
    refused = newcomer.refused(*words)
    assert refused.startswith("error: ")
    assert [answer for answer in answers if answer not in refused] == [], refused
    assert [*newcomer.folder.iterdir()] == []


def test_several_what_ifs_are_compared_in_every_combination(newcomer):
    what_ifs = ("--what-if", "trainer.num_nodes=1,2", "--what-if", "data.micro_batch_size=1,2")
    rows = newcomer.succeed("plan", "--factory", "llama3_8b", *what_ifs).splitlines()[1:5]
    assert [row.split()[:2] for row in rows] == [
        [f"trainer.num_nodes={nodes}", f"data.micro_batch_size={size}"]
        for nodes in (1, 2)
        for size in (1, 2)
    ]


def test_a_step_schedule_of_megatron_is_understood_as_it_is_written(newcomer):
    schedule = "model.step_batch_size_schedule='0:512 1m:1.024k 2e6:2048.'"
    plan = newcomer.succeed("plan", "--factory", "gpt3_5b", schedule, "--json")
    assert [stage["global_batch_size"] for stage in json.loads(plan)["stages"]] == [512, 1024, 2048]


def test_words_of_megatron_bridge_give_the_plan_of_our_words(newcomer):
    theirs = ("train.global_batch_size=1024", "train.micro_batch_size=2", "train.train_iters=1000")
    ours = ("model.global_batch_size=1024", "data.micro_batch_size=2", "trainer.max_steps=1000")
    plan = newcomer.succeed("plan", "--factory", "llama3_8b", *theirs)
    assert plan == newcomer.succeed("plan", "--factory", "llama3_8b", *ours)
    assert plan.splitlines()[1].split()[:6] == ["0", "1024", "1", "8", "4", "2"]


def test_a_plan_says_that_a_recipe_has_no_data_of_its_own(newcomer):
    plan = newcomer.succeed("plan", "--factory", "llama3_8b").splitlines()
    assert "data: mock (random tokens)" in plan


def test_a_dry_run_of_one_stage_prints_the_script_that_is_submitted(newcomer):
    words = ("pretrain", "--factory", "gpt3_5b", "launch=slurm", "--dry-run")
    assert newcomer.succeed(*words).count("# ---- ") == 8
    assert newcomer.succeed(*words, "--one-stage").count("# ---- ") == 1
