"""RUN/evaluation.json: what a run was found to be worth, by protocol, settings and shard set.

A result is a JSON object: its protocol and settings, the set's digest, whether that is the set the
run was trained on ("own"), the step it was made at, and figures by name. No torch.
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
    """All results of a run, the latest last; none where nothing was evaluated yet.

    Files of before have one result, of nearest neighbours on the run's own set, instead of a list.
    UserError for a file that cannot be read.
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
    """Write `result` beside those of other protocols, settings and sets, in one move.

    It takes the place of one with the same.
    """
    others = [found for found in read_results(run) if not _is_replaced(found, result)]
    write_whole(run / NAME, json.dumps({"results": [*others, result]}, indent=1))


def own_result(results: list[Result], protocol: str) -> Result:
    """That by a protocol on the set that the run was trained on; empty when there is none.

    Of several, the latest with a preset as it is, and else the latest.
    """
    found = [r for r in results if r.get("protocol") == protocol and r.get("own")]
    unchanged = [r for r in found if not changes(r)]
    return (unchanged or found or [{}])[-1]


def preset_first(results: list[Result]) -> list[Result]:
    """Those with a preset as it is before those that changed it, each in their order."""
    return sorted(results, key=lambda result: bool(changes(result)))


def _is_replaced(old: Result, new: Result) -> bool:
    if "digest" not in old:  # of before, when a set's was not noted
        return bool(old.get("own") and new.get("own") and old.get("protocol") == new["protocol"])
    return settings_of(old) == settings_of(new)
