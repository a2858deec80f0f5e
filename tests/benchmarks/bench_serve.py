"""Serves a run of ten million steps: speed of reading, memory, and time of an answer.

.venv/bin/python tests/benchmarks/bench_serve.py [ROWS]
"""

import http.client
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rampcli.machine.host import peak_resident_bytes
from rampcli.serve.runs_folder import RunsFolder
from rampcli.serve.server import PageServer
from recorded_runs import write_run

ROWS = 10_000_000
PIECE = 100_000
ROW = (
    '{"step": %d, "time": %.3f, "stage": 1, "consumed_samples": %d, "consumed_tokens": %d,'
    ' "global_batch_size": 8, "accumulate_grad_batches": 1, "world_size": 2, "loss": %.6f,'
    ' "grad_norm": 0.8731042, "lr": 0.00029341, "step_time_s": %.6f, "data_time_s": 0.000153,'
    ' "samples_per_s": 16.1, "tokens_per_s": %.1f, "mfu": 0.41233,'
    ' "peak_memory_bytes": 429391872, "order_hash": null}\n'
)
SPIKE = 7_654_321


def write_rows(path: Path, rows: int) -> None:
    """Writes the metrics of a long run, with one spike of its loss."""
    spike = min(SPIKE, rows // 2)
    with path.open("w") as file:
        for first in range(1, rows + 1, PIECE):
            steps = range(first, min(first + PIECE, rows + 1))
            file.write(
                "".join(
                    ROW
                    % (
                        *(step, 100.0 + step / 2, 8 * step, 1024 * step),
                        99.0 if step == spike else 2 + 3 / (1 + step / 1e5) + step % 17 / 100,
                        0.5 + step % 7 / 100,
                        2000 + step % 13,
                    )
                    for step in steps
                )
            )


def ask(port: int, query: str) -> tuple[dict, float, int]:
    """Returns an answer, its seconds, and its size on the wire."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    begun = time.perf_counter()
    connection.request("GET", f"/api/run/long?{query}")
    content = connection.getresponse().read()
    return json.loads(content)["data"], time.perf_counter() - begun, len(content)


def main() -> None:
    """Prints the figures."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "long")
        write_rows(run.metrics, rows)
        size = run.metrics.stat().st_size
        print(f"{rows:,} rows, {size / 2**30:.2f} GiB")
        before = peak_resident_bytes() or 0
        with PageServer(RunsFolder(Path(folder)), host="127.0.0.1", port=None) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            port = server.server_address[1]
            begun = time.perf_counter()
            data, seconds, sent = ask(port, "axis=samples")
            print(f"first answer     {seconds:.3f} s, with {data['reading']:.1%} of the file")
            slowest = 0.0
            while data["reading"] < 1 or data["rows"] < rows:
                time.sleep(1)
                data, seconds, _ = ask(port, "axis=samples")
                slowest = max(slowest, seconds)
            read_s = time.perf_counter() - begun
            print(f"whole file read  {read_s:.1f} s, {rows / read_s:,.0f} rows/s")
            print(f"answers while it was read took at most {slowest:.3f} s")
            most_bytes = (peak_resident_bytes() or 0) - before
            print(f"memory           {most_bytes / 2**20:,.0f} MiB at most")
            data, seconds, sent = ask(port, "axis=samples")
            print(f"answer, whole    {seconds:.3f} s, {sent / 2**10:,.0f} KiB before gzip")
            assert max(data["series"]["columns"]["loss"]["high"]) == 99.0
            middle = 8 * min(SPIKE, rows // 2)
            for share in (0.1, 0.001, 0.00001):
                reach = share * 4 * rows
                query = f"axis=samples&low={middle - reach:.0f}&high={middle + reach:.0f}"
                data, seconds, sent = ask(port, query)
                width = data["series"]["bucket_rows"]
                print(f"answer, {share:<8.3%} {seconds:.3f} s, {width:g} rows per point")
                loss = data["series"]["columns"]["loss"]
                assert max(loss.get("high", loss["mean"])) == 99.0
            server.shutdown()


if __name__ == "__main__":
    main()
