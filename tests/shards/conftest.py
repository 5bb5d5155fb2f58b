"""An S3 server of one's own (moto) in another process, and a new bucket on it for each test; a
fair shard set to plant faults in.
"""

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.shards.planted_sets import Members, members_of_set, write_set

# Not in a thread of the tests: DALI keeps the interpreter to itself while it reads.
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
BUCKET_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of an S3 server; starting it takes seconds."""
    pytest.importorskip("boto3")
    pytest.importorskip("moto")
    with subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        yield server.stdout.readline().strip()
        server.stdin.close()


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Points boto3 and DALI at an endpoint, with credentials that open nothing else."""

    def point_at(endpoint: str) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "access-key-of-tests")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-key-of-tests")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)

    return point_at


@pytest.fixture
def bucket(s3_endpoint: str, aws: Callable[[str], None]) -> str:
    """The name of a new empty bucket; the environment leads boto3 and DALI to its server."""
    import boto3

    aws(s3_endpoint)
    name = f"bucket-{next(BUCKET_NUMBERS)}"
    boto3.session.Session().client("s3").create_bucket(Bucket=name)
    return name


@pytest.fixture
def content() -> dict[str, Members]:
    return members_of_set()


@pytest.fixture
def clean(tmp_path: Path, content: dict[str, Members]) -> Path:
    return write_set(tmp_path / "set", content)
