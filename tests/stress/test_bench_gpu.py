import subprocess
import sys
from pathlib import Path

from tiny_runs import environment


def test_the_benchmark_for_gpus_runs_to_its_table_with_a_tiny_model_on_the_cpu():
    program = Path(__file__).parents[1] / "benchmarks" / "bench_gpu.py"
    ended = subprocess.run(
        [sys.executable, str(program), "--tiny"],
        env=environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    _, table = ended.stdout.split("\ncontender ")
    assert "failed" not in table
    rows = [line.split()[:4] for line in table.splitlines()[1:] if not line.startswith(" ")]
    assert rows == [
        ["rampcli", "32", "2", "1"],
        ["rampcli", "32", "2", "8"],
        ["transformers", "32", "2", "1"],
        ["minimal", "32", "2", "1"],
    ]
