import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from rampcli.train.trace import read_trace


def test_calls_and_times_equal_those_of_torchs_own_table(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(3):
            model(torch.ones(32, 64)).sum().backward()
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    found, _ = read_trace(tmp_path / "trace.json")
    wanted = {each.key: each for each in profiled.key_averages() if not each.is_user_annotation}
    assert found.keys() == wanted.keys()
    assert found["aten::addmm"].calls == 6
    for name, operator in found.items():
        assert (
            operator.calls >= wanted[name].count
        )  # torch leaves out calls of an operator by itself
        assert operator.cpu_us == pytest.approx(wanted[name].self_cpu_time_total, abs=0.5)
        assert operator.device_us == 0


def event(kind, name, *, ts, dur, tid=1, number=0):
    args = {"External id": number}
    return {"ph": "X", "cat": kind, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def mark(step, *, ts, dur):
    return event("user_annotation", f"step {step}", ts=ts, dur=dur)


def traced(folder, *events):
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return read_trace(folder / "trace.json")


def test_the_time_of_kernels_counts_for_the_operator_that_started_them(tmp_path):
    found, _ = traced(
        tmp_path,
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        mark(1, ts=0, dur=100),
        event("cpu_op", "aten::linear", ts=0, dur=40, number=1),
        event("cpu_op", "aten::mm", ts=10, dur=20, number=2),
        event("cpu_op", "aten::mm", ts=40, dur=5, number=3),
        event("cpu_op", "aten::mm", ts=12, dur=5, tid=2, number=4),  # of another thread
        event("kernel", "gemm", ts=30, dur=200, tid=7, number=2),
        event("gpu_memcpy", "Memcpy DtoH", ts=230, dur=30, tid=7, number=4),
        event("kernel", "of nobody", ts=300, dur=30, tid=7, number=99),
    )
    facts = {name: (each.calls, each.cpu_us, each.device_us) for name, each in found.items()}
    assert facts == {"aten::linear": (1, 20, 0), "aten::mm": (3, 30, 230)}


def test_exchange_is_the_time_of_collectives_in_which_nothing_is_computed(tmp_path):
    _, exchange_us = traced(
        tmp_path,
        mark(1, ts=0, dur=100),
        mark(2, ts=200, dur=100),
        event("cpu_op", "Backward", ts=10, dur=80),
        event("user_annotation", "gloo:all_reduce", ts=20, dur=30, tid=8),
        event("user_annotation", "gloo:all_reduce", ts=40, dur=20, tid=9),  # at the same time
        event("cpu_op", "aten::mm", ts=25, dur=10),  # computed meanwhile
        event("cpu_op", "aten::linear", ts=45, dur=10),
        event("cpu_op", "_c10d_functional::wait_tensor", ts=47, dur=8),  # within the one before
        event("cpu_op", "aten::copy_", ts=21, dur=20, tid=8),  # by a thread that exchanges
        event("user_annotation", "gloo:all_gather", ts=90, dur=120, tid=8),  # half between steps
    )
    assert exchange_us == (40 - 10 - 2) + (10 + 10)


def test_exchange_on_a_gpu_is_the_time_in_which_only_kernels_of_collectives_run(tmp_path):
    _, exchange_us = traced(
        tmp_path,
        mark(1, ts=0, dur=100),
        event("user_annotation", "gloo:all_reduce", ts=0, dur=100, tid=8),  # not on the GPU
        event("cpu_op", "aten::mm", ts=0, dur=100),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", ts=10, dur=60, tid=7),
        event("kernel", "gemm", ts=5, dur=25, tid=6),
        event("gpu_memcpy", "Memcpy DtoH", ts=60, dur=20, tid=6),
    )
    assert exchange_us == 30
