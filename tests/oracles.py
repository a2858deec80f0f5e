"""What other systems do with a ramp or with nodes, as their own code has answered."""

import json
from pathlib import Path
from typing import Any


def _read(name: str) -> dict[str, Any]:
    path = Path(__file__).parent / "batch" / "oracles" / name
    oracle = json.loads(path.read_text(encoding="utf-8"))
    for system, columns in oracle.get("stage_columns", {}).items():
        for case in oracle["cases"]:
            stages = case.get(system, {}).get("stages") or []
            stages[:] = [dict(zip(columns, stage, strict=True)) for stage in stages]
    return oracle


RAMPS = _read("rampup.json")
RAMP_CASES = {case["name"]: case for case in RAMPS["cases"]}
NODE_CASES = {case["name"]: case for case in _read("nodes.json")["cases"]}
