"""Ranges of objects are read by signed URLs, which are renewed, replaced or given up."""

import time

import numpy as np
import pytest

boto3 = pytest.importorskip("boto3")

from accelssl.shards.storage import s3_ranges  # noqa: E402
from accelssl.shards.storage.storage import open_storage  # noqa: E402
from tests.shards.storage.scripted_s3 import Reply, Serve, is_signed, refusal  # noqa: E402

DATA = np.random.default_rng(0).bytes(100_000)


def test_a_url_is_signed_once_for_many_ranges_of_an_object(serve: Serve) -> None:
    store = serve(Reply(206, b"data"))
    storage = open_storage("s3://bucket/set")
    for name in ("x", "y", "x", "y", "x"):
        assert storage.read(name, 7, 4) == b"data"
    x, y, *others = store.requests
    assert is_signed(x)
    assert is_signed(y)
    assert others == [x, y, x]
    assert store.ranges == ["bytes=7-10"] * 5


def test_a_url_that_has_expired_is_replaced(serve: Serve) -> None:
    data = Reply(206, b"data")
    store = serve(data, refusal(403, "ExpiredToken"), data, data)
    storage = open_storage("s3://bucket/set")
    assert [storage.read("x", 0, 4) for _ in range(3)] == [b"data"] * 3
    assert [is_signed(request) for request in store.requests] == [True, True, False, True]


def test_a_url_is_replaced_before_it_expires(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_ranges, "_KEPT_S", 0.9)
    store = serve(Reply(206, b"data"))
    storage = open_storage("s3://bucket/set")
    for pause_s in (0, 1.1):  # signatures have whole seconds
        time.sleep(pause_s)
        assert storage.read("x", 0, 4) == storage.read("x", 0, 4) == b"data"
    assert all(map(is_signed, store.requests))
    first, second, third, fourth = store.requests
    assert first == second != third == fourth


def test_urls_are_signed_for_the_region_where_the_bucket_is(serve: Serve) -> None:
    elsewhere = Reply(400, b"<Error><Code>Elsewhere</Code></Error>", region="eu-west-7")
    store = serve(elsewhere, Reply(206, b"data"))
    storage = open_storage("s3://bucket/set")
    assert [storage.read("x", 0, 4) for _ in range(3)] == [b"data"] * 3
    assert [is_signed(request) for request in store.requests] == [True, False, True, True]
    assert "us-east-1" in store.requests[0]
    assert "eu-west-7" in store.requests[2]


def test_a_store_that_takes_no_signed_urls_is_not_asked_again(serve: Serve) -> None:
    store = serve(refusal(403, "AccessDenied"), Reply(206, b"data"))
    storage = open_storage("s3://bucket/set")
    assert [storage.read("x", 0, 4) for _ in range(3)] == [b"data"] * 3
    assert [is_signed(request) for request in store.requests] == [True, False, False, False]


@pytest.mark.parametrize("status", [404, 416, 500, 503])
def test_other_failures_do_not_tell_against_signed_urls(serve: Serve, status: int) -> None:
    store = serve(refusal(status, "Whatever"), Reply(206, b"data"))
    storage = open_storage("s3://bucket/set")
    assert [storage.read("x", 0, 4) for _ in range(3)] == [b"data"] * 3
    assert [is_signed(request) for request in store.requests] == [True, False, True, True]


def test_a_store_that_knows_no_ranges_gives_the_range(serve: Serve) -> None:
    serve(Reply(200, DATA))
    storage = open_storage("s3://bucket/set")
    assert storage.read("x", 1000, 50) == DATA[1000:1050]
    assert storage.read("x", 99_990, 50) == DATA[99_990:]
    assert storage.read("x", 99_990) == DATA[99_990:]
    assert storage.read("x", 100_000, 5) == b""
