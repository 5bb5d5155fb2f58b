"""A prefix of an S3 bucket as a storage.

Credentials, region and endpoint come from where boto3 looks for them: the environment (also
AWS_ENDPOINT_URL, for stores other than Amazon's), a profile, or the machine's role.
"""

import errno
import random
import re
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from accelssl.errors import UserError

try:
    from boto3.s3.transfer import TransferConfig
    from botocore.exceptions import ClientError
except ImportError as error:
    raise UserError(
        f"boto3, which reads and writes s3://, cannot be imported ({error}).",
        'Install it with: pip install "accelssl[s3]"',
    ) from error

from accelssl.shards.storage.s3_connection import LazyConnection
from accelssl.shards.storage.s3_errors import (
    TRANSFER_FAILURES,
    code_of,
    os_errors,
    status_of,
)

_BODY_PAUSES_S = (0.2, 0.4, 0.8, 1.6, 3.2)  # at most; a random part, so that readers spread out
_BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
_REMEDY = "Write it as s3://bucket/prefix."


class S3Prefix:
    """A `Storage` in S3. A file is the object <prefix>/<name>; deeper objects are folders.

    It may be pickled and may cross a fork: every process makes connections of its own.
    """

    parallel_reads = 64

    def __init__(self, url: str) -> None:
        """Parse the URL. Raise UserError if it is not s3://bucket or s3://bucket/prefix."""
        self._bucket, self._prefix = _parse(url)
        self._connection = LazyConnection(self._bucket, self.parallel_reads)

    def __reduce__(self) -> tuple[type["S3Prefix"], tuple[str]]:
        return type(self), (self.location,)

    @property
    def location(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def exists(self) -> bool:
        with os_errors(self.location, self._bucket):
            try:
                page = self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=self._prefix, MaxKeys=1
                )
            except ClientError as error:
                if code_of(error) == "NoSuchBucket":
                    return False
                raise
        return not self._prefix or bool(page.get("Contents"))

    def names(self) -> list[str]:
        names: set[str] = set()
        for page in self._pages():
            names.update(self._name(item["Key"]) for item in page.get("Contents", ()))
            names.update(self._name(item["Prefix"]) for item in page.get("CommonPrefixes", ()))
        return sorted(names - {""})

    def sizes_bytes(self) -> dict[str, int]:
        sizes_bytes = {
            self._name(item["Key"]): int(item["Size"])
            for page in self._pages()
            for item in page.get("Contents", ())
        }
        sizes_bytes.pop("", None)
        return sizes_bytes

    def read(self, name: str, offset: int = 0, size_bytes: int | None = None) -> bytes:
        if size_bytes == 0:
            return self.read(name, offset, 1)[:0]  # there is no empty range to ask for
        pauses_s = iter(_BODY_PAUSES_S)
        with os_errors(self.path_of(name), self._bucket):
            if size_bytes is not None:
                data = self._connection.get().ranges.read(self._prefix + name, offset, size_bytes)
                if data is not None:
                    return data
            while True:
                answer = self._get(name, offset, size_bytes)
                # boto3 tries a request again, but not once the answer has begun.
                try:
                    return b"" if answer is None else _part(answer, offset, size_bytes)
                except TRANSFER_FAILURES:
                    pause_s = next(pauses_s, None)
                    if pause_s is None:
                        raise
                    time.sleep(random.uniform(0, pause_s))

    def read_into(self, name: str, offset: int, memory: memoryview) -> int:
        data = self.read(name, offset, len(memory))
        memory[: len(data)] = data
        return len(data)

    def write(self, name: str, data: bytes) -> None:
        with os_errors(self.path_of(name), self._bucket):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    def take(self, path: Path, name: str) -> None:
        # The classic client: the other one, where it is installed, has options of its own.
        how = TransferConfig(preferred_transfer_client="classic")
        with os_errors(self.path_of(name), self._bucket):
            self._client.upload_file(str(path), self._bucket, self._prefix + name, Config=how)
        path.unlink()

    def delete(self, name: str) -> None:
        try:
            with os_errors(self.path_of(name), self._bucket):
                self._client.delete_object(Bucket=self._bucket, Key=self._prefix + name)
        except FileNotFoundError:
            pass  # Amazon's store does not mind; others do

    def path_of(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{name}"

    def _get(self, name: str, offset: int, size_bytes: int | None) -> dict[str, Any] | None:
        """Return the store's answer before its body, or None if the file ends before offset."""
        last = "" if size_bytes is None else offset + size_bytes - 1
        asked = {"Range": f"bytes={offset}-{last}"} if offset or last != "" else {}
        try:
            answer: dict[str, Any] = self._client.get_object(
                Bucket=self._bucket, Key=self._prefix + name, **asked
            )
        except ClientError as error:
            if status_of(error) == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return None
            raise
        return answer

    def _pages(self) -> list[dict[str, Any]]:
        with os_errors(self.location, self._bucket):
            listing = self._client.get_paginator("list_objects_v2")
            pages = list(listing.paginate(Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"))
        if self._prefix and not any(
            page.get("Contents") or page.get("CommonPrefixes") for page in pages
        ):
            raise FileNotFoundError(errno.ENOENT, "there is nothing of that name", self.location)
        return pages

    def _name(self, key: str) -> str:
        return key.removeprefix(self._prefix).rstrip("/")

    @property
    def _client(self) -> Any:
        return self._connection.get().client


def _part(answer: dict[str, Any], offset: int, size_bytes: int | None) -> bytes:
    """Return the requested bytes from an answer that has just begun."""
    with answer["Body"] as body:
        data: bytes = body.read()
    if answer["ResponseMetadata"]["HTTPStatusCode"] == HTTPStatus.PARTIAL_CONTENT:
        return data
    # Without a range asked for, or from a store that does not know ranges: the whole file.
    end = None if size_bytes is None else offset + size_bytes
    return data[offset:end]


def _parse(url: str) -> tuple[str, str]:
    """Return the bucket and the prefix, which is empty or ends in "/"."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if "@" in bucket:
        # Not repeated here: some programs take URLs with a secret key in them.
        raise UserError("An s3:// URL has no @ before its first /.", _REMEDY)
    if not url.startswith("s3://") or not _BUCKET.fullmatch(bucket):
        raise UserError(
            f"{url} does not name a bucket as S3 allows (3 characters or more).", _REMEDY
        )
    folders = prefix.removesuffix("/").split("/") if prefix else []
    if any(folder in ("", ".", "..") for folder in folders):
        # Other readers, such as DALI, would open another object.
        raise UserError(f"{url} has an empty folder name, or a . or .. as one.", _REMEDY)
    try:
        prefix.encode()
    except UnicodeEncodeError:
        raise UserError(f"{url!r} is not valid text.", _REMEDY) from None
    return bucket, "".join(f"{folder}/" for folder in folders)
