"""The program of `rampcli generate` in this process."""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rampcli.weights.generate import main


def generate_here(run_dir: Path, **options: Any) -> None:
    """Runs the program on a run, with the defaults of the command for other options."""
    given = {
        "run_dir": str(run_dir),
        "max_tokens": None,
        "temperature": 0.8,
        "top_k": None,
        "seed": 0,
        "step": None,
        "average": None,
        "raw": False,
        "as_json": False,
    }
    with patch.object(sys, "argv", ["generate", json.dumps(given | options)]):
        main()
