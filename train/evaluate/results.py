"""RUN/evaluation.json: the results of a run, by protocol, settings and shard set.

A result is a JSON object with protocol, settings, digest of the set, step and figures by name.
"own" is true if the run was trained on that set. No torch.
"""

import json
from pathlib import Path

from accelssl.errors import UserError
from accelssl.files import write_whole
from accelssl.json_text import parsed
from accelssl.train.evaluate.result_settings import Result, changes, settings_of

NAME = "evaluation.json"
NEAREST = "nn"


def read_results(run: Path) -> list[Result]:
    """Return all results of a run, the latest last; an empty list if there are none.

    Old files hold one nearest-neighbour result instead of a list. Raise UserError for a file that
    cannot be read.
    """
    path = run / NAME
    try:
        content = parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}.", _REMEDY) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object.", _REMEDY)
    if "results" not in content:
        return [{"protocol": NEAREST, "own": True} | content] if content else []
    results = content["results"]
    if not isinstance(results, list) or not all(isinstance(found, dict) for found in results):
        raise UserError(f"{path} holds no list of results.", _REMEDY)
    return results


_REMEDY = "Restore the file, or remove it and evaluate again."


def keep_result(run: Path, result: Result) -> None:
    """Write `result` beside those of other protocols, settings and sets, atomically.

    A result with the same protocol, settings and set is replaced.
    """
    others = [found for found in read_results(run) if not _is_replaced(found, result)]
    write_whole(run / NAME, json.dumps({"results": [*others, result]}, indent=1))


def own_result(results: list[Result], protocol: str) -> Result:
    """Return the result by a protocol on the run's own set; empty if there is none.

    If there are several, return the latest with an unchanged preset, else the latest.
    """
    found = [r for r in results if r.get("protocol") == protocol and r.get("own")]
    unchanged = [r for r in found if not changes(r)]
    return (unchanged or found or [{}])[-1]


def preset_first(results: list[Result]) -> list[Result]:
    """Sort results with an unchanged preset before the others, otherwise in their order."""
    return sorted(results, key=lambda result: bool(changes(result)))


def _is_replaced(old: Result, new: Result) -> bool:
    if "digest" not in old:  # old files do not record the set
        return bool(old.get("own") and new.get("own") and old.get("protocol") == new["protocol"])
    return settings_of(old) == settings_of(new)
