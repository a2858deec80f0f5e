"""A model is pretrained, exported, fine-tuned from there, used elsewhere and rewarded."""

import json
import random

GENERATE = """
import json
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("tuned")
tokenizer = AutoTokenizer.from_pretrained("tuned")
prompt = tokenizer("4040 is ", return_tensors="pt")
drawn = model.generate(**prompt, max_new_tokens=50, do_sample=False)[0].tolist()
print(json.dumps([tokenizer.decode(drawn), drawn]))
"""
SMALL = ("model.num_layers=2", "model.hidden_size=64", "model.ffn_hidden_size=96")
SHORT = ("trainer.max_samples=32", "trainer.val_samples=0", "trainer.num_nodes=1")


def write_pairs(path):
    """Writes questions whose answers are easy to learn."""
    numbers = random.Random(0).sample(range(10_000), 1500)
    pairs = [
        {"prompt": f"{number} is ", "response": "odd" if number % 2 else "even"}
        for number in numbers
    ]
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))


def test_a_fine_tuned_model_answers_and_stops_here_and_in_transformers(newcomer):
    write_pairs(newcomer.folder / "pairs.jsonl")
    pretrained = ("pretrain", "--factory", "llama3_tiny", "model.rampup_batch_size=null")
    newcomer.succeed(*pretrained, *SMALL, *SHORT)
    assert "eos_token_id None" in newcomer.succeed("export", "runs/llama3_tiny", "out")
    newcomer.succeed(
        *("pretrain", "--factory", "fine_tune", "model.init_from=out", "data.path=pairs.jsonl"),
        *("data.sequence_length=64", "data.micro_batch_size=16", "model.global_batch_size=16"),
        *("optim.optimizer=muon", "optim.lr=1e-2", "trainer.max_samples=560"),
        'generate.prompts=["4040 is "]',
        "generate.max_tokens=20",
        "generate.temperature=0",
    )
    prompt = ("--prompt", "4040 is ", "--temperature", "0")
    assert newcomer.succeed("generate", "runs/fine_tune", *prompt) == "4040 is even\n"
    events = (newcomer.folder / "runs/fine_tune/events.jsonl").read_text().splitlines()
    (samples,) = [row for row in map(json.loads, events) if row["event"] == "samples"]
    assert samples["texts"] == [{"prompt": "4040 is ", "text": "even"}]
    newcomer.succeed("export", "runs/fine_tune", "tuned")
    generated = newcomer.run(newcomer.python, "-c", GENERATE, HF_HUB_OFFLINE="1")
    assert generated.returncode == 0, generated.stderr
    text, tokens = json.loads(generated.stdout)
    assert text == "4040 is even\n"
    assert tokens[-1] == ord("\n")
    newcomer.succeed(
        *("rl", "--factory", "fine_tune", "model.init_from=tuned", "data.path=pairs.jsonl"),
        *("data.sequence_length=24", "trainer.max_steps=1"),
    )
    events = (newcomer.folder / "runs/fine_tune_rl/events.jsonl").read_text().splitlines()
    before, _ = [row for row in map(json.loads, events) if "greedy" in row]
    assert before["greedy"] > 0.5


def test_a_model_that_is_not_given_is_asked_for_in_one_report_with_the_data(newcomer):
    said = newcomer.refused("pretrain", "--factory", "fine_tune")
    assert said.count("error: ") == 2
    assert "try:    model.init_from=FOLDER" in said
    assert "try:    data.path=FILE.jsonl" in said
    assert [*newcomer.folder.iterdir()] == []
