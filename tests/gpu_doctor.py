"""`rampcli doctor --gpu` with small sizes.

python -m gpu_doctor ACCELERATOR GPUS LIMIT_S [--json]
"""

import sys
from dataclasses import replace

from rampcli.cli.doctor_gpu import check_gpus
from rampcli.launch.doctor.gpu_runs import Sizes

SMALL = Sizes(
    small={
        "model.num_layers": 2,
        "model.hidden_size": 32,
        "model.ffn_hidden_size": 64,
        "data.sequence_length": 32,
        "optim.warmup_samples": 1,
    },
    large=(("llama3_tiny", 2),),
    sequence_length=32,
    resumed_steps=50,
    timed=((1, 4), (2, 4)),
    compile=False,
    matrix=128,
    numbers=1000,
)


if __name__ == "__main__":
    accelerator, gpus, limit_s, *options = sys.argv[1:]
    sizes = replace(SMALL, limit_s=float(limit_s), long_limit_s=float(limit_s))
    sys.exit(
        check_gpus(
            accelerator=accelerator, gpus=int(gpus), sizes=sizes, as_json="--json" in options
        )
    )
