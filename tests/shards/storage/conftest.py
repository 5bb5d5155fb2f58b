"""A scripted S3 store for tests."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.shards.storage.scripted_s3 import Reply, Serve, Store


@pytest.fixture
def serve(aws: Callable[[str], None]) -> Iterator[Serve]:
    """Starts a scripted store and points boto3 at it."""
    stores: list[Store] = []

    def started(*replies: Reply, port: int = 0, certificate: Path | None = None) -> Store:
        stores.append(Store(list(replies), port, certificate))
        aws(stores[-1].endpoint)
        return stores[-1]

    yield started
    for store in stores:
        store.stop()
