"""A process's connections to a bucket's store."""

import os
import threading
from typing import Any, NamedTuple

import boto3
import botocore.session
from botocore.config import Config

from accelssl.shards.storage.s3_ranges import Ranges

# A minute of retries in all. Unlike the other modes of boto3, "legacy" has no quota of retries for
# the whole client, which 64 readers would use up in the first second without a network.
_RETRY_MODE = "legacy"
_REQUEST_ATTEMPTS = 8
_CONNECT_TIMEOUT_S = 10


class Connection(NamedTuple):
    """Return boto3's S3 client, and a quicker reader of ranges."""

    client: Any
    ranges: Ranges


class LazyConnection:
    """Connection made at first use, once in every process: a fork shares no sockets.

    Connecting takes a tenth of a second and raises what boto3 raises on a wrong configuration.
    """

    def __init__(self, bucket: str, at_a_time: int) -> None:
        self._bucket, self._at_a_time = bucket, at_a_time
        # With a lock of its own for each process: another thread may hold it at a fork.
        self._of_process: dict[int, tuple[threading.Lock, list[Connection]]] = {}

    def get(self) -> Connection:
        process = os.getpid()
        # Several threads may come here first at once: the lock of one of them stays.
        lock, made = self._of_process.get(process) or self._of_process.setdefault(
            process, (threading.Lock(), [])
        )
        if not made:
            with lock:
                if not made:
                    made.append(self._connect())
        return made[0]

    def _connect(self) -> Connection:
        session = botocore.session.get_session()
        attempts = session.get_config_variable("max_attempts") or _REQUEST_ATTEMPTS
        options = Config(
            max_pool_connections=self._at_a_time,
            connect_timeout=_CONNECT_TIMEOUT_S,
            retries={"mode": _RETRY_MODE, "total_max_attempts": attempts},
        )
        client = boto3.session.Session(botocore_session=session).client("s3", config=options)
        return Connection(client, Ranges(session, self._bucket, options))
