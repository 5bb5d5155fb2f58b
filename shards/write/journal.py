"""unfinished.json: the finished shards of a job, so that the next call continues from there.

Shards are published in the order of their plans, so the journal is always about the first ones.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from accelssl.errors import UserError
from accelssl.shards.manifest import UNFINISHED_NAME, ShardEntry
from accelssl.shards.storage.storage import Storage
from accelssl.shards.write.shard_writer import Quarantined, ShardPlan

Options = Mapping[str, int | str]


@dataclass(frozen=True)
class Record:
    """The outcome of one plan: the shard it became, or None where none of its images decodes."""

    plan: str
    entry: ShardEntry | None
    transcoded: Mapping[str, int]
    quarantined: tuple[Quarantined, ...]


@dataclass
class Journal:
    """The job's options, and a record for each of its first plans."""

    options: Options
    records: list[Record]

    def to_bytes(self) -> bytes:
        return (json.dumps(asdict(self), indent=1, sort_keys=True) + "\n").encode()


def read_journal(storage: Storage) -> Journal:
    """Read the journal of an interrupted job. Raise UserError if it is not a sharding job's."""
    try:
        document = json.loads(storage.read(UNFINISHED_NAME))
        return Journal(dict(document["options"]), [_record(r) for r in document["records"]])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{storage.path_of(UNFINISHED_NAME)} is not the journal of a sharding job ({error}).",
            "Remove the folder, or choose another one.",
        ) from None


def _record(document: dict[str, object]) -> Record:
    entry, quarantined = document["entry"], document["quarantined"]
    if not (isinstance(quarantined, list) and isinstance(document["transcoded"], dict)):
        raise ValueError("a record is out of shape")
    return Record(
        plan=str(document["plan"]),
        entry=ShardEntry(**entry) if isinstance(entry, dict) else None,
        transcoded=document["transcoded"],
        quarantined=tuple(Quarantined(**image) for image in quarantined),
    )


def fingerprint(plan: ShardPlan) -> str:
    """Hash the plan of a shard: its place in the set, and its images by label and name."""
    images = [(image.label, image.wnid, image.name) for image in plan.images]
    # Names may hold bytes that are no text; JSON writes them as escapes.
    text = json.dumps([plan.split, plan.first_key, images])
    return hashlib.sha256(text.encode()).hexdigest()
