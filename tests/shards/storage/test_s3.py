"""An S3 prefix: its URLs, and what it does with a store that behaves."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelssl.errors import UserError

boto3 = pytest.importorskip("boto3")

from accelssl.shards.storage.s3 import S3Prefix  # noqa: E402
from accelssl.shards.storage.s3_connection import Connection, LazyConnection  # noqa: E402
from accelssl.shards.storage.storage import open_storage  # noqa: E402

DATA = np.random.default_rng(0).bytes(100_000)


def client() -> Any:
    return boto3.session.Session().client("s3")


@pytest.mark.parametrize(
    ("url", "location", "path"),
    [
        ("s3://bucket", "s3://bucket", "s3://bucket/x"),
        ("s3://bucket/", "s3://bucket", "s3://bucket/x"),
        ("s3://bucket/a/b", "s3://bucket/a/b", "s3://bucket/a/b/x"),
        ("s3://bucket/a/b/", "s3://bucket/a/b", "s3://bucket/a/b/x"),
        ("s3://my.b-1/a b/%41?c#d", "s3://my.b-1/a b/%41?c#d", "s3://my.b-1/a b/%41?c#d/x"),
    ],
)
def test_a_url_names_a_bucket_and_perhaps_a_prefix(url: str, location: str, path: str) -> None:
    storage = open_storage(url)
    assert storage.location == location
    assert storage.path_of("x") == path


@pytest.mark.parametrize(
    "url",
    ["s3://", "s3:///set", "s3:/bucket/set", "s3:bucket", "s3://a bucket/set", "s3://b/set",
     "s3://bucket//set", "s3://bucket/a//b", "s3://bucket/set//", "s3://bucket/a/../b",
     "s3://bucket/./a", "s3://bucket/a\udcff"],
)  # fmt: skip
def test_a_url_without_a_bucket_or_with_an_ambiguous_prefix_is_refused(url: str) -> None:
    with pytest.raises(UserError) as caught:
        open_storage(url)
    assert url in caught.value.what or repr(url) in caught.value.what
    assert "s3://bucket/prefix" in caught.value.remedy


def test_a_path_made_of_a_url_is_refused() -> None:
    with pytest.raises(UserError, match=r"s3:/bucket/set .*s3://bucket/prefix"):
        open_storage(Path("s3://bucket/set"))


def test_a_secret_in_a_url_is_not_repeated() -> None:
    with pytest.raises(UserError) as caught:
        open_storage("s3://AKIAKEY:topsecret@bucket/set")
    assert "AKIAKEY" not in str(caught.value)
    assert "topsecret" not in str(caught.value)


def test_without_boto3_the_user_is_told_what_to_install() -> None:
    code = """
import sys
sys.modules["boto3"] = None
from accelssl.shards.storage.storage import open_storage
open_storage(sys.argv[1])
open_storage("s3://bucket/set")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, os.curdir], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("accelssl.errors.UserError: boto3")
    assert 'pip install "accelssl[s3]"' in last


def test_objects_are_where_other_programs_look_for_them(bucket: str) -> None:
    for prefix in ("", "a/b"):
        storage = open_storage(f"s3://{bucket}/{prefix}")
        storage.write("ours", b"data")
        key = f"{prefix}/ours".lstrip("/")
        assert client().get_object(Bucket=bucket, Key=key)["Body"].read() == b"data"
        client().put_object(Bucket=bucket, Key=f"{prefix}/theirs".lstrip("/"), Body=b"other")
        assert storage.read("theirs") == b"other"
        assert {"ours", "theirs"} <= set(storage.names())


def test_odd_characters_in_a_prefix_are_part_of_the_key(bucket: str) -> None:
    prefix = "a b+c%41?d=e&f#g/ü'()!*"
    open_storage(f"s3://{bucket}/{prefix}").write("x", b"data")
    listed = client().list_objects_v2(Bucket=bucket)["Contents"]
    assert [item["Key"] for item in listed] == [f"{prefix}/x"]
    assert open_storage(f"s3://{bucket}/{prefix}/").names() == ["x"]


def test_listings_of_more_than_a_page_are_complete(bucket: str) -> None:
    storage = open_storage(f"s3://{bucket}/set")
    names = [f"{i:04}" for i in range(1001)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(storage.write, names, [bytes(i % 7) for i in range(1001)]))
    open_storage(f"s3://{bucket}/set/z/deeper").write("x", b"")
    assert storage.names() == [*names, "z"]
    assert storage.sizes_bytes() == {name: int(name) % 7 for name in names}


def test_the_marker_by_which_consoles_show_an_empty_folder_is_no_file(bucket: str) -> None:
    client().put_object(Bucket=bucket, Key="set/", Body=b"")
    storage = open_storage(f"s3://{bucket}/set")
    assert storage.exists()
    assert storage.names() == []
    assert storage.sizes_bytes() == {}


def test_an_empty_bucket_is_an_empty_place(bucket: str) -> None:
    storage = open_storage(f"s3://{bucket}")
    assert storage.exists()
    assert storage.names() == []
    assert storage.sizes_bytes() == {}


def test_a_large_file_is_taken_in_parts_and_none_are_left(bucket: str, tmp_path: Path) -> None:
    data = np.random.default_rng(1).bytes(17_000_001)
    (tmp_path / "local").write_bytes(data)
    storage = open_storage(f"s3://{bucket}/set")
    storage.take(tmp_path / "local", "x.tar")
    head = client().head_object(Bucket=bucket, Key="set/x.tar", ChecksumMode="ENABLED")
    assert head["ETag"].endswith('-3"')
    assert storage.read("x.tar") == data
    assert storage.read("x.tar", 8_388_600, 20) == data[8_388_600:8_388_620]
    assert not (tmp_path / "local").exists()
    assert "Uploads" not in client().list_multipart_uploads(Bucket=bucket)


def test_it_may_be_pickled(bucket: str) -> None:
    storage = open_storage(f"s3://{bucket}/a b")
    storage.write("x", DATA)
    copy = pickle.loads(pickle.dumps(storage))
    assert copy.location == storage.location
    assert copy.read("x", 10, 20) == DATA[10:30]


def _reads_the_same(storage: S3Prefix) -> bool:
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda i: storage.read("x", i * 1000, 1000), range(20))
        return b"".join(parts) == DATA[:20_000]


def test_it_works_on_both_sides_of_a_fork(bucket: str) -> None:
    storage = S3Prefix(f"s3://{bucket}/set")
    storage.write("x", DATA)
    assert _reads_the_same(storage)
    # By a closure, which a fork copies: pickling is another matter.
    parents = storage._connection.get()

    def child() -> None:
        os._exit(_reads_the_same(storage) and storage._connection.get() is not parents)

    children = [multiprocessing.get_context("fork").Process(target=child) for _ in range(2)]
    for process in children:
        process.start()
    for process in children:
        process.join()
    assert [process.exitcode for process in children] == [1, 1]
    assert _reads_the_same(storage)


def test_a_fork_while_another_thread_connects_does_not_hang(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    S3Prefix(f"s3://{bucket}/set").write("x", DATA)
    connect, parent, go_on = LazyConnection._connect, os.getpid(), threading.Event()

    def slow_in_the_parent(connection: LazyConnection) -> Connection:
        if os.getpid() == parent:
            go_on.wait()
        return connect(connection)

    monkeypatch.setattr(LazyConnection, "_connect", slow_in_the_parent)
    storage = S3Prefix(f"s3://{bucket}/set")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(storage.read, "x")
        child = multiprocessing.get_context("fork").Process(
            target=lambda: os._exit(_reads_the_same(storage))
        )
        child.start()
        child.join(20)
        exit_code = child.exitcode
        child.kill()
        go_on.set()
        assert exit_code == 1
        assert reading.result() == DATA
