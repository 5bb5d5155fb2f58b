"""A shard set as a dataset of the webdataset library, for training loops outside accelssl."""

from pathlib import Path

import webdataset as wds

from accelssl.errors import UserError
from accelssl.shards.shard_set import open_shards
from accelssl.shards.storage.storage import S3_SCHEME, Location


def webdataset_of(location: Location, split: str) -> wds.WebDataset:
    """Return a split of the shard set in a local folder as a dataset of (PIL image, label) pairs.

    Images are RGB; a label is a position in the set's classes. The samples come in the order of the
    manifest. Workers of a DataLoader share the shards; a worker without a shard gives no samples.
    Raises UserError for an unknown split, for an s3:// URL, and for every fault that `open_shards`
    refuses.
    """
    if str(location).startswith(S3_SCHEME):
        raise UserError(
            f"{location} is on object storage: webdataset_of reads local folders only.",
            f"Copy the set first: `aws s3 sync {location} shards`.",
        )
    # The absolute path: webdataset takes a relative path with a colon for a URL.
    tars = open_shards(Path(location).absolute()).split(split).tars
    dataset = wds.WebDataset(list(tars), shardshuffle=False, empty_check=False)
    # Adopted tars may hold further members, which may not decode.
    return dataset.decode("pil", only=("jpg", "jpeg", "cls")).to_tuple("jpg;jpeg", "cls")
