"""Builds Llama 3 70B as one rank of 1024, and prints its memory and the peak of building it."""

import json
import resource
import sys

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from rampcli import llm
from rampcli.parallel.mesh import build_meshes
from rampcli.train.build import build_parts

config = llm.llama3_70b.pretrain_recipe()
config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size = 1, 1
config.parallel.virtual_pipeline_parallel_size, config.parallel.context_parallel_size = 1, 1
dist.init_process_group("fake", rank=int(sys.argv[1]), world_size=1024, store=FakeStore())
meshes = build_meshes(torch.device("cpu"), config.parallel)
before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
(model,) = build_parts(config, meshes, torch.device("cpu"))
most_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes
whole = sum(parameter.numel() for parameter in model.parameters())
here = sum(parameter.to_local().numel() for parameter in model.parameters())
filled = all(parameter.to_local().isfinite().all().item() for parameter in model.parameters())
print(json.dumps({"parameters": whole, "held": here, "most_bytes": most_bytes, "filled": filled}))
