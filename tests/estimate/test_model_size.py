from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as run
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rampcli import llm
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.state import TrainingState
from rampcli.config.compose import compose
from rampcli.config.groups import option_names
from rampcli.estimate.model_size import checkpoint_bytes, count_parameters, flops_per_token
from rampcli.models.decoder import Decoder
from rampcli.runs.directory import RunDirectory
from rampcli.settings.by_key import settings
from rampcli.settings.model import ModelConfig
from rampcli.train.optimizers import build_optimizers

LLAMA3_8B = 8_030_261_248
"""Parameters of the checkpoints of Meta and Hugging Face."""


@st.composite
def shapes(draw):
    groups, heads_per_group, half_head = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
    )
    heads = groups * heads_per_group
    return ModelConfig(
        num_layers=draw(st.integers(1, 3)),
        hidden_size=heads * half_head * 2,
        ffn_hidden_size=draw(st.integers(1, 20)),
        num_attention_heads=heads,
        num_query_groups=draw(st.sampled_from([None, groups])),
        vocab_size=draw(st.integers(1, 20)),
        normalization=draw(st.sampled_from(settings()["model.normalization"].choices)),
        activation=draw(st.sampled_from(settings()["model.activation"].choices)),
        position_embedding=draw(st.sampled_from(settings()["model.position_embedding"].choices)),
        bias=draw(st.booleans()),
        tie_embeddings=draw(st.booleans()),
    )


def built(model, sequence_length):
    with torch.device("meta"):
        return Decoder(model, sequence_length=sequence_length)


def parameters(model, sequence_length):
    return sum(parameter.numel() for parameter in built(model, sequence_length).parameters())


@run(max_examples=25)
@given(model=shapes(), sequence_length=st.integers(1, 12))
def test_the_counted_parameters_are_those_of_the_decoder(model, sequence_length):
    assert count_parameters(model, sequence_length=sequence_length) == parameters(
        model, sequence_length
    )


@pytest.mark.parametrize("name", option_names("model"))
def test_the_counted_parameters_are_those_of_every_model_in_conf(name):
    model = compose(f"model={name}").model
    model.vocab_size = model.vocab_size or 256  # null: that of the tokenizer
    assert count_parameters(model, sequence_length=2048) == parameters(model, 2048)


def test_llama3_8b_has_the_parameters_that_its_file_says():
    assert count_parameters(compose("model=llama3_8b").model, sequence_length=8192) == LLAMA3_8B
    text = (Path(__file__).parents[2] / "conf" / "model" / "llama3_8b.yaml").read_text(
        encoding="utf-8"
    )
    assert f"{LLAMA3_8B:,} parameters" in text


def counted_flops(model, sequence_length):
    """Returns the operations per token that torch counts in a forward pass, and in training.

    The mathematical kernel of attention is the one whose backward pass recomputes nothing.
    """
    decoder = built(model, sequence_length)
    tokens = torch.zeros(1, sequence_length, dtype=torch.int64, device="meta")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = decoder(tokens)
        forward = counter.get_total_flops() / sequence_length
        logits.sum().backward()
    return forward, counter.get_total_flops() / sequence_length


@run(max_examples=10, deadline=None)
@given(model=shapes(), sequence_length=st.integers(2, 12))
def test_the_operations_of_a_token_are_those_that_torch_counts(model, sequence_length):
    flops = flops_per_token(model, sequence_length=sequence_length)
    assert counted_flops(model, sequence_length) == (flops / 3, flops)


@pytest.mark.parametrize("name", option_names("model"))
def test_the_operations_of_every_model_in_conf_are_those_that_torch_counts(name):
    model = compose(f"model={name}").model
    model.vocab_size = model.vocab_size or 256
    model.num_layers = 2
    flops = flops_per_token(model, sequence_length=1024)
    assert counted_flops(model, 1024) == (flops / 3, flops)


def test_a_longer_sequence_costs_more_operations_per_token_and_no_parameters():
    model = ModelConfig()
    short, long = (flops_per_token(model, sequence_length=length) for length in (128, 256))
    assert long - short == 12 * model.num_layers * model.hidden_size * 128
    assert count_parameters(model, sequence_length=128) == count_parameters(
        model, sequence_length=256
    )


@given(length=st.integers(1, 300), window=st.none() | st.integers(1, 400))
def test_causal_attention_counts_the_tokens_that_each_token_looks_at(length, window):
    model = ModelConfig(sliding_window=window)
    per_token = 12 * model.num_layers * model.hidden_size
    seen = sum(min(position, window or length) for position in range(1, length + 1)) / length
    full, causal = (
        flops_per_token(model, sequence_length=length, causal=causal) for causal in (False, True)
    )
    assert full - causal == pytest.approx(per_token * (min(length, window or length) - seen))


def test_the_two_ways_to_count_attention_differ_by_an_eighth_for_llama3_8b():
    config = llm.llama3_8b.pretrain_recipe()
    full, causal = (
        flops_per_token(config.model, sequence_length=8192, causal=causal)
        for causal in (False, True)
    )
    assert full / causal == pytest.approx(1.125, abs=0.001)


def checkpoint_of(config, passes, run):
    """Saves the checkpoint after one step."""
    optimizers = build_optimizers(passes.parts, config.optim)
    for parameter in (parameter for part in passes.parts for parameter in part.parameters()):
        parameter.grad = torch.ones_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    Checkpoints(
        run, passes.parts, optimizers, keep_last=1, facts={"corpus": "", "settings": {}}
    ).save(TrainingState(step=1))
    return run.checkpoint_folder(1)


@pytest.mark.parametrize("optimizer", settings()["optim.optimizer"].choices)
@pytest.mark.parametrize("model", ["llama3_tiny", "small_gpt"])
def test_a_checkpoint_has_the_counted_bytes(model, optimizer, build_passes, small_gpt, tmp_path):
    config = small_gpt if model == "small_gpt" else llm.llama3_tiny.pretrain_recipe()
    config.model.vocab_size = 256
    config.optim.optimizer = optimizer
    folder = checkpoint_of(config, build_passes(config), RunDirectory(tmp_path))
    tensors = {
        name: tensor
        for file in folder.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }
    steps = [name for name in tensors if name.endswith(".step")]  # AdamW's, one number each
    assert checkpoint_bytes(config) == sum(
        tensor.nbytes for name, tensor in tensors.items() if name not in steps
    )
    if model == "llama3_tiny":
        assert sum(path.stat().st_size for path in folder.iterdir()) < 1.02 * checkpoint_bytes(
            config
        )
