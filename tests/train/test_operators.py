import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from rampcli.train.operators import operators_of


def test_calls_and_times_equal_those_of_torchs_own_table(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(3):
            model(torch.ones(32, 64)).sum().backward()
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    found = operators_of(tmp_path / "trace.json")
    wanted = {each.key: each for each in profiled.key_averages() if not each.is_user_annotation}
    assert found.keys() == wanted.keys()
    assert found["aten::addmm"].calls == 6
    for name, operator in found.items():
        assert (
            operator.calls >= wanted[name].count
        )  # torch leaves out calls of an operator by itself
        assert operator.cpu_us == pytest.approx(wanted[name].self_cpu_time_total, abs=0.5)
        assert operator.device_us == 0


def test_the_time_of_kernels_counts_for_the_operator_that_started_them(tmp_path):
    def event(kind, name, *, ts, dur, tid=1, number=0):
        args = {"External id": number}
        return {
            "ph": "X",
            "cat": kind,
            "name": name,
            "ts": ts,
            "dur": dur,
            "tid": tid,
            "args": args,
        }

    events = [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        event("user_annotation", "step 1", ts=0, dur=100),
        event("cpu_op", "aten::linear", ts=0, dur=40, number=1),
        event("cpu_op", "aten::mm", ts=10, dur=20, number=2),
        event("cpu_op", "aten::mm", ts=40, dur=5, number=3),
        event("cpu_op", "aten::mm", ts=12, dur=5, tid=2, number=4),  # of another thread
        event("kernel", "gemm", ts=30, dur=200, tid=7, number=2),
        event("gpu_memcpy", "Memcpy DtoH", ts=230, dur=30, tid=7, number=4),
        event("kernel", "of nobody", ts=300, dur=30, tid=7, number=99),
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    found = operators_of(tmp_path / "trace.json")
    facts = {name: (each.calls, each.cpu_us, each.device_us) for name, each in found.items()}
    assert facts == {"aten::linear": (1, 20, 0), "aten::mm": (3, 30, 230)}
