"""Our loss, its gradient and advantages equal those of TRL's GRPOTrainer, release 1.16.

They agree if TRL divides by counts of a whole update. Otherwise they differ on purpose:

* `loss_type="bnpo"` divides by the tokens of each micro batch, then averages over micro batches and
  ranks. Tokens weigh more if there are fewer of them in their micro batch.
* `loss_type="grpo"` and `"dr_grpo"` average over micro batches and ranks, too. Pairs weigh the same
  only if all micro batches have the same number of them.
* `loss_type="dapo"` divides by the mean number of tokens per update of a rollout. If a rollout
  serves several updates, those with more tokens take larger steps.

We divide by the counts of one update over all passes and ranks. The gradient therefore depends
neither on the micro batch size nor on the number of ranks.

TRL weighs the divergence from the reference by the ratio unless it is told otherwise. We do so if
`Objective.kl_correction` is set.
"""

from collections import defaultdict
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from models.families import FAMILIES
from rampcli.data.corpus import IGNORED
from rampcli.files.guarded_folder import write_json
from rampcli.models.decoder import Decoder
from rampcli.models.huggingface_config import to_huggingface
from rampcli.models.huggingface_tensors import places
from rampcli.models.loss import token_log_probs
from rampcli.rl.objective import Objective, PolicyBatch, PolicySums, batch_std, group_advantages
from rampcli.settings.rl import RLConfig

FAMILY = FAMILIES["llama3"]
TEMPERATURE = 0.8
PROMPT, RESPONSE = 5, 8
"""Longest prompt and longest response, in tokens."""
GENERATIONS = 4
AVERAGES = {"grpo": "sequences", "bnpo": "tokens", "dapo": "tokens", "dr_grpo": "length"}
PAD = 0

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """Returns TRL's trainer of a small Llama with random weights, in fp64."""
    # Imported here: it takes seconds.
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast, set_seed
    from trl import GRPOConfig, GRPOTrainer

    folder = tmp_path_factory.mktemp("trl")
    write_json(
        folder / "config.json",
        to_huggingface(FAMILY, sequence_length=PROMPT + RESPONSE, dtype="float32"),
    )
    set_seed(0)
    words = Tokenizer(WordLevel({f"w{word}": word for word in range(128)}, unk_token="w2"))
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).double(),
        reward_funcs=lambda **_: [],
        args=GRPOConfig(
            output_dir=str(folder),
            use_cpu=True,
            bf16=False,
            report_to=[],
            per_device_train_batch_size=GENERATIONS,
            num_generations=GENERATIONS,
            max_completion_length=RESPONSE,
            temperature=TEMPERATURE,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["w3"] * GENERATIONS}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=words, pad_token="w0", eos_token="w1"
        ),
    )
    trainer.model.train()
    return trainer


@pytest.fixture(scope="module")
def policy(trainer):
    """Returns our decoder with the weights of the trainer's model."""
    model = Decoder(FAMILY, sequence_length=PROMPT + RESPONSE).double()
    model.fill_buffers()
    model.loss = partial(token_log_probs, temperature=TEMPERATURE)
    with torch.no_grad():
        for ours, theirs in parameters(model, trainer):
            ours.copy_(theirs)
    return model


def parameters(model, trainer):
    """Pairs each parameter of ours with the one of transformers."""
    found = places(FAMILY, sequence_length=PROMPT + RESPONSE)
    return [
        (model.get_parameter(name), trainer.model.get_parameter(place.tensor))
        for name, place in found.items()
    ]


@pytest.fixture(scope="module")
def rollout(policy):
    """Returns eight prompts and responses as TRL lays them out, and where the policy came from."""
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.rand, generator=generator, dtype=torch.float64)
    prompts, responses = torch.tensor([[5, 3, 4, 1, 5, 2, 3, 4], [8, 3, 5, 1, 2, 7, 8, 4]])
    found = {
        # Prompts are padded on the left, responses on the right.
        "prompt_ids": torch.randint(2, 128, (8, PROMPT), generator=generator),
        "prompt_mask": (torch.arange(PROMPT) >= PROMPT - prompts[:, None]).long(),
        "completion_ids": torch.randint(2, 128, (8, RESPONSE), generator=generator),
        "completion_mask": (torch.arange(RESPONSE) < responses[:, None]).long(),
        "advantages": torch.linspace(-1.5, 2, 8, dtype=torch.float64)[draw(8).argsort()],
    }
    batch = policy_batch(found)
    with torch.no_grad():
        log_probs, _ = policy(batch.tokens, labels=batch.labels)
    present = torch.zeros(8, RESPONSE, dtype=torch.float64)
    present[found["completion_mask"] > 0] = log_probs[batch.labels >= 0]
    # The ratios of whole sequences leave the bounds, too.
    found["old_per_token_logps"] = present + draw(8, 1) - 0.5 + 0.6 * (draw(8, RESPONSE) - 0.5)
    found["ref_per_token_logps"] = present + draw(8, RESPONSE) - 0.5
    return found


def policy_batch(inputs: dict) -> PolicyBatch:
    """Returns pairs that TRL has laid out. Values where a label is ignored are NaN."""
    pairs = len(inputs["prompt_ids"])
    tokens = torch.full((pairs, PROMPT + RESPONSE), PAD)
    places = torch.zeros(pairs, PROMPT + RESPONSE, dtype=torch.bool)
    for pair, response in enumerate(inputs["completion_mask"].sum(dim=1).tolist()):
        prompt = inputs["prompt_ids"][pair][inputs["prompt_mask"][pair] > 0]
        together = torch.cat([prompt, inputs["completion_ids"][pair, :response]])
        tokens[pair, : len(together)] = together
        places[pair, len(prompt) - 1 : len(together) - 1] = True

    def at_labels(values: torch.Tensor | None, otherwise: float) -> torch.Tensor | None:
        if values is None:
            return None
        moved = values.new_full(places.shape, otherwise)
        moved[places] = values[inputs["completion_mask"] > 0]
        return moved

    old = at_labels(inputs.get("old_per_token_logps"), torch.nan)
    return PolicyBatch(
        tokens=tokens,
        labels=at_labels(inputs["completion_ids"], IGNORED),
        advantages=inputs["advantages"],
        old_log_probs=torch.full(places.shape, torch.nan) if old is None else old,
        is_first_update=old is None,
        reference_log_probs=at_labels(inputs.get("ref_per_token_logps"), torch.nan),
    )


class Policy(torch.nn.Module):
    """Our decoder, called like TRL's. It computes whole logits and everything in fp64.

    Transformers' models compute norms and rotations in fp32, and TRL the log-probabilities.
    """

    def __init__(self, policy):
        super().__init__()
        self.policy = policy

    def forward(self, input_ids, attention_mask, **_):
        tokens, padding = torch.arange(input_ids.shape[1]), attention_mask.argmax(dim=1)[:, None]
        # Padding moves from the left to the right: positions count from 0.
        logits = self.policy(input_ids.gather(1, (tokens + padding) % len(tokens)))
        log_probs = (logits / TEMPERATURE).log_softmax(-1)
        moved = ((tokens[:-1] - padding) % len(tokens))[..., None]
        log_probs = log_probs.gather(1, moved.expand(-1, -1, log_probs.shape[2]))
        of_tokens = log_probs.gather(2, input_ids[:, 1:, None])[..., 0]
        entropies = -(log_probs.exp() * log_probs).sum(-1).detach()
        return SimpleNamespace(log_probs=of_tokens, entropy=entropies)


def split(inputs: dict, parts: int) -> list[dict]:
    chunks = [value.chunk(parts) for value in inputs.values()]
    return [dict(zip(inputs, chunk, strict=True)) for chunk in zip(*chunks, strict=True)]


def set_up(trainer, objective: Objective, *, loss_type: str, accumulation: int) -> None:
    trainer.loss_type = loss_type
    trainer.importance_sampling_level = objective.rl.ratio
    trainer.epsilon_low, trainer.epsilon_high = objective.rl.clip_low, objective.rl.clip_high
    trainer.beta = objective.rl.kl_weight
    trainer.args.use_bias_correction_kl = objective.rl.kl_correction
    trainer.args.steps_per_generation = accumulation
    trainer.current_gradient_accumulation_steps = accumulation
    trainer._metrics = {"train": defaultdict(list)}


def their_loss(trainer, policy, inputs: dict, *, accumulation: int) -> float:
    """Returns TRL's loss of an update, and leaves its gradient in the policy."""
    tokens = inputs["completion_mask"].sum()
    total = 0.0
    policy.zero_grad()
    for part in split(inputs, accumulation):
        loss = trainer._compute_loss(Policy(policy), part | {"num_items_in_batch": tokens})
        loss.backward()
        total += loss.item()
    return total


def our_loss(
    policy, objective: Objective, inputs: dict, *, passes: int
) -> tuple[float, PolicySums]:
    """Returns our loss of an update and its sums, and leaves its gradient in the policy."""
    denominator = objective.denominator(
        pairs=len(inputs["advantages"]), tokens=int(inputs["completion_mask"].sum())
    )
    total, sums = 0.0, torch.zeros(len(PolicySums._fields), dtype=torch.float64)
    policy.zero_grad()
    for part in split(inputs, passes):
        batch = policy_batch(part)
        loss, found = objective(*policy(batch.tokens, labels=batch.labels), batch)
        (loss / denominator).backward()
        total += loss.item() / denominator
        sums += found
    return total, PolicySums(*sums.tolist())


@pytest.mark.parametrize("kl", ["no KL", "KL", "corrected KL"])
@pytest.mark.parametrize("update", ["first", "later"])
@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", AVERAGES)
def test_the_loss_and_its_gradient_equal_those_of_trl(
    trainer, policy, rollout, loss_type, ratio, update, kl
):
    settings = RLConfig(
        clip_low=0.1,
        clip_high=0.28,
        ratio=ratio,
        kl_weight=0.0 if kl == "no KL" else 0.1,
        kl_correction=kl == "corrected KL",
        average=AVERAGES[loss_type],
    )
    objective = Objective(settings, RESPONSE)
    inputs = dict(rollout)
    if update == "first":
        del inputs["old_per_token_logps"]
    if kl == "no KL":
        del inputs["ref_per_token_logps"]
    # bnpo has the denominator of the whole update only if that is one micro batch.
    accumulation = 1 if loss_type == "bnpo" else 2
    set_up(trainer, objective, loss_type=loss_type, accumulation=accumulation)
    expected = their_loss(trainer, policy, inputs, accumulation=accumulation)
    gradients = [parameter.grad for parameter in policy.parameters()]
    loss, sums = our_loss(policy, objective, inputs, passes=4)
    assert loss == pytest.approx(expected, rel=1e-9)
    for parameter, gradient in zip(policy.parameters(), gradients, strict=True):
        assert gradient.any()
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-9)
    assert (sums.clipped > 0) == (update == "later")


def test_log_probs_entropies_and_gradients_equal_those_of_trl(trainer, policy, rollout):
    batch = policy_batch(rollout)
    ours = policy(batch.tokens, labels=batch.labels)
    theirs = trainer._get_per_token_logps_and_entropies(
        trainer.model,
        torch.cat([rollout["prompt_ids"], rollout["completion_ids"]], dim=1),
        torch.cat([rollout["prompt_mask"], rollout["completion_mask"]], dim=1),
        RESPONSE,
        compute_entropy=True,
    )
    log_probs, entropies = (part[rollout["completion_mask"] > 0].double() for part in theirs[:2])
    counted = batch.labels >= 0
    # Parts of TRL's computation are in fp32.
    torch.testing.assert_close(ours[0][counted], log_probs, rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(ours[1][counted], entropies.detach(), rtol=1e-6, atol=2e-6)
    factors = torch.linspace(-1, 2, len(log_probs))
    policy.zero_grad()
    (ours[0][counted] * factors).sum().backward()
    (log_probs * factors).sum().backward()
    for mine, yours in parameters(policy, trainer):
        largest = yours.grad.abs().max().item()
        torch.testing.assert_close(mine.grad, yours.grad, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("ratio", ["token", "sequence"])
def test_the_metrics_equal_those_of_trl(trainer, policy, rollout, ratio):
    objective = Objective(RLConfig(ratio=ratio, kl_weight=0.1, kl_correction=False), RESPONSE)
    set_up(trainer, objective, loss_type="dapo", accumulation=1)
    their_loss(trainer, policy, rollout, accumulation=1)
    theirs = {name: values[0] for name, values in trainer._metrics["train"].items()}
    means = our_loss(policy, objective, rollout, passes=4)[1].means()
    assert {
        "clip_ratio/region_mean": means["clipped"],
        "kl": means["reference_kl"],
        "entropy": means["entropy"],
    } == pytest.approx({name: theirs[name] for name in ("clip_ratio/region_mean", "kl", "entropy")})


NAN = float("nan")
REWARDS = {
    "different": [[0.0, 1.0, 0.5, 0.0], [1.0, 1.0, 0.0, 3.0]],
    "equal": [[1.0, 1.0, 1.0, 1.0], [0.3, 0.3, 0.3, 0.3]],
    "some missing": [[0.0, NAN, 1.0, 0.5], [2.0, NAN, NAN, 0.0]],
    "one in a group": [[NAN, 2.0, NAN, NAN], [0.0, 1.0, 0.0, 0.0]],
    "none in a group": [[NAN, NAN, NAN, NAN], [0.0, 1.0, 0.0, 0.0]],
    "one in all": [[NAN, NAN, NAN, NAN], [NAN, 1.0, NAN, NAN]],
}


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
@pytest.mark.parametrize("rewards", REWARDS.values(), ids=REWARDS)
def test_advantages_equal_those_of_trl(trainer, rewards, scale):
    flat = [reward for group in rewards for reward in group]
    trainer.scale_rewards, trainer.beta = scale, 0.0
    trainer.generation_config.max_new_tokens = 1
    trainer.reward_funcs = [lambda **_: [None if reward != reward else reward for reward in flat]]
    scored = trainer._generate_and_score_completions([{"prompt": "w3"}] * len(flat))
    ours = torch.tensor(rewards, dtype=torch.float64)
    found = group_advantages(
        ours, scale=scale, batch_std=batch_std(ours) if scale == "batch" else None
    )
    torch.testing.assert_close(found.flatten(), scored["advantages"], rtol=1e-5, atol=1e-6)
