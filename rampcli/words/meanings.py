"""What each word of another system means there, and what it becomes here."""

from rampcli.words import bridge
from rampcli.words.maxtext_mesh import AXES, KEYS

_BATCH = "samples per optimiser step, at the end of a ramp"
_NEMO_AXES = {
    "tensor_model_parallel_size": (
        "ranks that share each layer. Sets `parallel.tensor_parallel_size`."
    ),
    "pipeline_model_parallel_size": (
        "pipeline stages that the layers are divided into. Sets `parallel.pipeline_parallel_size`."
    ),
    "context_parallel_size": (
        "ranks that share each sequence. Sets `parallel.context_parallel_size`."
    ),
}
_BRIDGE = {
    "train.micro_batch_size": "samples per data-parallel rank in one forward and backward pass.",
    "train.global_batch_size": f"{_BATCH}.",
    "train.rampup_batch_size": "batch-size ramp, `[start, increment, samples]`.",
    "train.step_batch_size_schedule": "batch sizes from given points on, in tokens.",
    "train.decrease_batch_size_if_needed": (
        "decrease batch sizes that do not divide over the ranks."
    ),
    "train.train_iters": "optimiser steps of the run.",
    "train.train_samples": "samples of the run.",
    "model.seq_length": "length of the model's samples, in tokens; equal to `dataset.seq_length`.",
    "dataset.seq_length": "length of a sample, in tokens.",
    "dataset.sequence_length": "`dataset.seq_length` in versions up to 0.5.",
    "scheduler.lr_warmup_iters": "optimiser steps of the warm-up.",
    "scheduler.lr_warmup_samples": "samples of the warm-up.",
    "optimizer.lr": "highest learning rate.",
    "optimizer.min_lr": "lowest learning rate after the warm-up.",
}
_MESH_AXES = {
    "tensor": "devices that share each layer",
    "pipeline": "stages of the pipeline",
    "context": "devices that share each sequence",
    "fsdp": "devices that share one copy of the weights",
    "data": "copies of the weights",
}
_PLACES = {"ici": ("within a slice", "dcn"), "dcn": ("across slices", "ici")}


def _mesh_meaning(word: str) -> str:
    group, axis = word[:3], AXES[word]
    place, other = _PLACES[group]
    product = f"Its product with `{other}_{axis}_parallelism`"
    becomes = (
        f"{product} is the number of copies; `{KEYS[word]}` ranks share each."
        if axis == "data"
        else f"{product} sets `{KEYS[word]}`."
    )
    return f"MaxText: {_MESH_AXES[axis]}, {place}; -1 takes the remaining devices. {becomes}"


MEANINGS: dict[str, str] = {
    "data.global_batch_size": f"NeMo 2: {_BATCH}. Sets `model.global_batch_size`.",
    "data.rampup_batch_size": (
        "NeMo 2: batch-size ramp, `[start, increment, samples]`. Sets `model.rampup_batch_size`."
    ),
    "model.micro_batch_size": (
        "NeMo 1: samples per data-parallel rank in one forward and backward pass. Sets"
        " `data.micro_batch_size`."
    ),
    **{
        f"model.{name}": f"NeMo 1 and Megatron Bridge: {meaning}"
        for name, meaning in _NEMO_AXES.items()
    },
    **{f"trainer.strategy.{name}": f"NeMo 2: {meaning}" for name, meaning in _NEMO_AXES.items()},
    **{
        word: f"Megatron Bridge: {meaning} Sets `{bridge.SPELLINGS[word]}`."
        for word, meaning in _BRIDGE.items()
    },
    "gradient_accumulation_steps": (
        "MaxText: forward and backward passes per optimiser step. Sets"
        " `trainer.accumulate_grad_batches`, and in place of a recipe's `model.global_batch_size`"
        " the product of micro batch, data-parallel ranks and passes."
    ),
    "expansion_factor_real_data": (
        "MaxText: one host in this many reads data, if above 1. Sets"
        " `data.expansion_factor_real_data`."
    ),
    "num_pipeline_microbatches": (
        "MaxText: parts of a pass that go through the pipeline one after another. Sets"
        " `parallel.num_pipeline_microbatches`."
    ),
    "per_device_batch_size": (
        "MaxText: samples per device in one forward and backward pass. Times the devices that share"
        " a sample, it is `data.micro_batch_size`; times all devices and"
        " `gradient_accumulation_steps`, it is `model.global_batch_size`."
    ),
    "enable_rampup_batch_size": (
        "MaxText: whether the batch ramps up. `true` sets `model.rampup_batch_size`,"
        " `rampup.semantics=maxtext`, `rampup.node_policy=fixed` and"
        " `rampup.micro_batch=largest`; `false` sets"
        " `model.rampup_batch_size=null`."
    ),
    "per_device_batch_size_start": (
        "MaxText: samples per device at the start of the ramp. Times all devices, it is the start"
        " in `model.rampup_batch_size`."
    ),
    "per_device_batch_size_increment": (
        "MaxText: samples per device that each stage of the ramp adds. Times all devices, it is the"
        " increment in `model.rampup_batch_size`."
    ),
    "global_rampup_samples": (
        "MaxText: samples of the whole ramp. They are the samples in `model.rampup_batch_size`."
    ),
    **{word: _mesh_meaning(word) for word in AXES},
    "rl.prompts_per_step": (
        "`rampcli rl`: prompts per step. The samples of such a run are prompts, so this sets"
        " `model.global_batch_size`."
    ),
}
"""A sentence or two for every word that is accepted."""
DERIVED: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        ("global_batch_to_load", "global_batch_size_to_load"),
        (
            "MaxText: samples that are loaded for an optimiser step: at least one per device and"
            " pass, times `data.expansion_factor_real_data`.",
            ("model.global_batch_size", "data.expansion_factor_real_data"),
        ),
    ),
    **dict.fromkeys(
        ("global_batch_to_train", "global_batch_size_to_train_on"),
        (
            "MaxText: samples that an optimiser step trains on. Here: `model.global_batch_size`.",
            ("model.global_batch_size", "per_device_batch_size"),
        ),
    ),
    "micro_batch_size_to_train_on": (
        "MaxText: samples that all devices train on in one forward and backward pass. In MaxText's"
        " ramp, a step is one pass.",
        ("data.micro_batch_size", "per_device_batch_size"),
    ),
}
"""Meaning of each number that MaxText derives, and the keys to set instead."""
KNOWN_ELSEWHERE = {
    "max_target_length": "data.sequence_length",
    "seq_length": "data.sequence_length",
    "encoder_seq_length": "data.sequence_length",
    "data_path": "data.path",
    "data_prefix": "data.blend",
    "paths": "data.blend",
    "splits_string": "data.split",
    "reset_attention_mask": "data.document_mask",
    "steps": "trainer.max_steps",
    "train_iters": "trainer.max_steps",
    "train_samples": "trainer.max_samples",
    "num_generations": "rl.generations_per_prompt",
    "batchsize": "model.global_batch_size",
    "ppo_mini_batch_size": "rl.updates_per_rollout",
    "max_completion_length": "rl.max_response_tokens",
    "max_response_length": "rl.max_response_tokens",
    "learning_rate": "optim.lr",
    "beta": "rl.kl_weight",
    "epsilon_high": "rl.clip_high",
    "group_size": "rl.generations_per_prompt",
    "num_generation": "rl.generations_per_prompt",
}
"""Our keys for other systems' keys that are not accepted, by their last part."""
