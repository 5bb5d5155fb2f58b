"""What a run has logged, for tests."""

import json
from pathlib import Path
from typing import Any


def lines(run: Path, kind: str) -> list[dict[str, Any]]:
    written = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in written if line["kind"] == kind]


def losses(run: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(run, "step")}
