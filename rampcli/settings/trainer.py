"""Settings of the hardware, the length of the run, a step, its loss, and what is saved."""

from typing import Literal

from rampcli.settings.attributes import Section
from rampcli.settings.facts import (
    COST,
    LEARNING,
    LENGTH,
    MACHINES,
    NOTHING,
    SPEED,
    SPLIT,
    UPDATES,
    VALIDATION,
    any_phase,
    whole_run,
)
from rampcli.settings.fields import Keyed, keyed, setting, settings_class

Accelerator = Literal["auto", "cpu", "gpu"]
Precision = Literal["fp32", "bf16"]
MatmulPrecision = Literal["highest", "high", "medium"]
ActivationCheckpointing = Literal["none", "selective", "full"]
AccumulateReduce = Literal["last", "each"]
OnNonfinite = Literal["stop", "skip"]
_END = whole_run(LENGTH, "the run ends once; a phase ends at its `until`").one_way_of("length")


@keyed("trainer.")
@settings_class(kw_only=True)
class TrainerConfig(Section):
    """Hardware, length of the run, and how a step is computed.

    At most one of `max_steps`, `max_samples` and `max_tokens` is set. Without them, the run has no
    end.
    """

    num_nodes: Keyed[int] = setting(
        1,
        "Number of nodes, at most. A ramp may use fewer.",
        any_phase(MACHINES),
        unit="nodes",
        at_least=1,
        at_most=100_000,
    )
    devices: Keyed[int] = setting(
        1,
        "Processes per node, one per GPU.",
        whole_run(MACHINES, "all phases run on the same nodes; trainer.num_nodes says on how many"),
        unit="processes",
        at_least=1,
        at_most=10_000,
    )
    accelerator: Keyed[Accelerator] = setting(
        "auto",
        "Device type. `auto`: GPUs if this machine has enough for the largest stage, else the CPU.",
        whole_run(MACHINES),
    )
    precision: Keyed[Precision] = setting(
        "fp32",
        "Precision of the forward and backward pass. `bf16`: parameters are gathered and used in"
        " bf16; gradients are reduced and weights kept in fp32.",
        whole_run(LEARNING | COST),
    )
    matmul_precision: Keyed[MatmulPrecision] = setting(
        "highest",
        "Precision of matrix products of fp32 tensors. `high`: TF32 on GPUs that have it, several"
        " times as fast, with 10 bits of the factors' fractions instead of 23. `medium`: also,"
        " the layers' projections and their gradients are computed in bf16, with 7 bits. It needs a"
        " GPU, or a CPU under Linux with AVX512_BF16 or AMX.",
        whole_run(LEARNING | COST),
    )
    accumulate_grad_batches: Keyed[int | None] = setting(
        None,
        "Micro batches per optimiser step, where the batch is largest. `null`: derived.",
        any_phase(SPLIT | COST).unread_by_rl(
            ", whose micro batches are counted in pairs: rl.micro_batch_size", "rl.micro_batch_size"
        ),
        unit="micro batches",
        at_least=1,
    )
    max_steps: Keyed[int | None] = setting(
        None,
        "Length of the run in steps. `null`: not set.",
        _END,
        unit="optimiser steps",
        at_least=1,
    )
    max_samples: Keyed[int | None] = setting(
        None,
        "Length of the run in samples. `null`: not set.",
        _END,
        unit="samples",
        at_least=1,
    )
    max_tokens: Keyed[int | None] = setting(
        None,
        "Length of the run in tokens. `null`: not set.",
        _END.unread_by_rl(", which counts prompts", "trainer.max_steps or trainer.max_samples"),
        unit="tokens",
        at_least=1,
    )
    accumulate_reduce: Keyed[AccumulateReduce | None] = setting(
        None,
        "When gradients are reduced over the ranks. `last`: once per step; until then, each rank"
        " holds its whole gradient. `each`: after each micro batch, which needs less memory and"
        " sends more. Replicas are reduced once per step in any case. `null`: `each` if the"
        " estimated memory of `last` does not fit the device, and `each` needs less.",
        any_phase(COST),
    )
    activation_checkpointing: Keyed[ActivationCheckpointing] = setting(
        "none",
        "Activations recomputed in the backward pass. `full`: everything but each layer's input."
        " `selective`: everything but the input and the results of matrix products.",
        any_phase(COST),
    )
    compile: Keyed[bool | None] = setting(
        None,
        "Compile the layers with torch.compile before the first step. Needs a C++ compiler."
        " Compiled code is cached for later runs. `null` or `auto`: compile if the run is long"
        " enough to save more time than compiling takes.",
        any_phase(COST).unread_by_rl(
            ": each micro batch has a length of its own, and would be compiled anew", unused=False
        ),
        former={"auto": None},
    )
    numa_binding: Keyed[bool] = setting(
        True,
        "On GPUs, each rank runs only on processors of its GPU's NUMA node, of those that it may"
        " use. It is not bound if they are fewer than 2, or than its OpenMP threads.",
        whole_run(SPEED),
    )
    gc_every_micro_batches: Keyed[int | None] = setting(
        100,
        "Collect Python's garbage at the end of a step, on all ranks, after this many micro batches"
        " or more. `null`: Python collects at times of its own on each rank.",
        whole_run(SPEED),
        unit="micro batches",
        at_least=1,
    )
    gradient_clip_val: Keyed[float | None] = setting(
        1.0, "Maximum gradient norm. `null`: no clipping.", any_phase(UPDATES | SPEED), above=0
    )
    on_nonfinite: Keyed[OnNonfinite] = setting(
        "stop",
        "Response to a loss or gradient that is not finite. `stop`: end the run. `skip`: leave the"
        " weights unchanged in that step.",
        whole_run(NOTHING),
    )
    val_every_steps: Keyed[int | None] = setting(
        None,
        "Interval between validations. `null`: only before the first step and after the last.",
        any_phase(NOTHING),
        unit="optimiser steps",
        at_least=1,
    )
    val_samples: Keyed[int | None] = setting(
        0,
        "Samples per validation. `null`: as many as the validation corpora have, up to"
        " `max_val_samples`. `0`: no validation.",
        any_phase(VALIDATION),
        unit="samples",
        at_least=0,
    )
    max_val_samples: Keyed[int] = setting(
        256,
        "Samples per validation at most, if `val_samples` is null.",
        any_phase(VALIDATION),
        unit="samples",
        at_least=0,
    )
    peak_tflops: Keyed[float | None] = setting(
        None,
        "Peak throughput of one device, for `mfu` and for the hours in a plan. `null`: unknown.",
        whole_run(NOTHING),
        unit="TFLOP/s",
        above=0,
    )
    device_memory_gb: Keyed[float | None] = setting(
        None,
        "Memory of one device, for the estimates in a plan. `null`: that of this machine's GPUs if"
        " it has some, else unknown.",
        whole_run(NOTHING),
        unit="GiB",
        above=0,
    )


@keyed("loss.")
@settings_class(kw_only=True)
class LossConfig(Section):
    """The loss of pretraining, which is the cross entropy, and what is added to it."""

    z_weight: Keyed[float | None] = setting(
        None,
        "Weight of the z-loss, which is added to the cross entropy and keeps the logits from"
        " growing. It is the mean of log(Z)^2 over tokens, where Z is the sum of the exponentials"
        " of a token's logits. PaLM uses 1e-4, OLMo 3 uses 1e-5. `null`: no z-loss.",
        any_phase(LEARNING | COST).unread_by_rl(", whose loss has no z-loss"),
        above=0,
        example=1e-5,
    )


@keyed("checkpoint.")
@settings_class(kw_only=True)
class CheckpointConfig(Section):
    """When checkpoints are saved, and how many are kept."""

    every_steps: Keyed[int | None] = setting(
        None,
        "Interval between checkpoints. Processes also save before they end: at a boundary with new"
        " processes, on a signal and at the end of the run. `null`: only then.",
        any_phase(NOTHING),
        unit="optimiser steps",
        at_least=1,
    )
    keep_last: Keyed[int] = setting(
        2, "Number of checkpoints to keep.", whole_run(NOTHING), unit="checkpoints", at_least=1
    )
    async_: Keyed[bool] = setting(
        False,
        "Continue training while a checkpoint is written. Needs memory on each host for a copy of"
        " what its processes save.",
        whole_run(NOTHING),
    )


@keyed("throughput.")
@settings_class(kw_only=True)
class ThroughputConfig(Section):
    """Throughput of one GPU, for the hours in a plan.

    `rampup.efficiency` takes precedence, then the first of these that is set. These are for a GPU
    that does not wait for others of a pipeline; a plan adds that time.
    """

    samples_per_s_per_gpu: Keyed[float | None] = setting(
        None,
        "Throughput of one GPU. `null`: estimated from `mfu`.",
        any_phase(NOTHING),
        unit="samples/s",
        above=0,
    )
    mfu: Keyed[float | None] = setting(
        None,
        "Share of `trainer.peak_tflops` that training reaches. `null`: no estimate.",
        any_phase(NOTHING),
        above=0,
        at_most=1,
    )
