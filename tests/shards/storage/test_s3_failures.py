"""An S3 prefix and stores that fail, refuse, tire or are out of reach: by scripted answers."""

import errno
import ipaddress
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

boto3 = pytest.importorskip("boto3")

from accelssl.shards.storage import s3  # noqa: E402
from accelssl.shards.storage.storage import open_storage  # noqa: E402
from tests.shards.storage.scripted_s3 import Reply, Serve, is_signed, refusal  # noqa: E402

DATA = np.random.default_rng(0).bytes(100_000)


def test_a_missing_bucket_is_named(s3_endpoint: str, aws: Callable[[str], None]) -> None:
    aws(s3_endpoint)
    storage = open_storage("s3://no-such-bucket/set")
    assert not storage.exists()
    for act in (storage.names, lambda: storage.read("x"), lambda: storage.write("x", b"")):
        with pytest.raises(OSError, match="no-such-bucket") as caught:
            act()
        assert caught.value.strerror == "there is no bucket no-such-bucket"
        assert not isinstance(caught.value, FileNotFoundError)


def test_a_store_out_of_reach_is_named(
    aws: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        aws(f"http://{address}")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        storage = open_storage("s3://bucket/set")
        (tmp_path / "local").write_bytes(DATA)
        for act in (
            storage.exists,
            storage.names,
            lambda: storage.read("x"),
            lambda: storage.write("x", b""),
            lambda: storage.take(tmp_path / "local", "x"),
            lambda: storage.delete("x"),
        ):
            with pytest.raises(OSError, match=f"{address} cannot be reached") as caught:
                act()
            assert caught.value.errno == errno.EHOSTUNREACH
            assert str(caught.value.filename).startswith("s3://bucket/set")
    assert (tmp_path / "local").read_bytes() == DATA


def test_missing_credentials_are_a_permission_error(
    aws: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    aws("http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(PermissionError, match="no usable credentials"):
        open_storage("s3://bucket/set").read("x")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(PermissionError, match=r"no usable credentials.*nobody"):
        open_storage("s3://bucket/set").read("x")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("AccessDenied", "User x may not do that (AccessDenied)"),
        ("InvalidAccessKeyId", "the store does not know the access key (InvalidAccessKeyId)"),
        ("SignatureDoesNotMatch", "the secret key does not belong"),
        ("ExpiredToken", "the credentials have expired"),
    ],
)
def test_what_the_store_does_not_allow_is_a_permission_error(
    serve: Serve, code: str, said: str
) -> None:
    message = "User x may not do that." if code == "AccessDenied" else "access-key-of-tests"
    serve(refusal(403, code, message))
    storage = open_storage("s3://bucket/set")
    for act in (storage.exists, storage.names, lambda: storage.read("x", 3, 4)):
        with pytest.raises(PermissionError) as caught:
            act()
        assert said in str(caught.value.strerror)
        assert "of-tests" not in str(caught.value)


def test_a_refused_part_leaves_the_file_and_removes_the_other_parts(
    serve: Serve, tmp_path: Path
) -> None:
    begun = "<InitiateMultipartUploadResult><UploadId>17</UploadId></InitiateMultipartUploadResult>"
    store = serve(Reply(200, begun.encode()), refusal(403, "AccessDenied"))
    (tmp_path / "local").write_bytes(bytes(9_000_000))
    with pytest.raises(PermissionError, match="AccessDenied") as caught:
        open_storage("s3://bucket/set").take(tmp_path / "local", "x.tar")
    assert caught.value.filename == "s3://bucket/set/x.tar"
    assert (tmp_path / "local").stat().st_size == 9_000_000
    assert any("PUT" in request for request in store.requests)
    assert store.requests[-1].startswith("DELETE /bucket/set/x.tar?uploadId=17")


def test_a_store_that_reports_a_missing_file_on_deletion_is_understood(serve: Serve) -> None:
    store = serve(refusal(404, "NoSuchKey"))
    open_storage("s3://bucket/set").delete("x")
    assert store.requests == ["DELETE /bucket/set/x"]


def test_the_remedy_for_a_store_without_checksums_is_named(serve: Serve) -> None:
    serve(refusal(501, "NotImplemented", "A header is not implemented."))
    with pytest.raises(OSError, match="AWS_REQUEST_CHECKSUM_CALCULATION=when_required"):
        open_storage("s3://bucket/set").write("x", b"data")


@pytest.mark.parametrize("when", [None, "when_required"])
def test_the_user_decides_whether_uploads_carry_checksums(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, when: str | None
) -> None:
    store = serve(Reply(200))
    if when:
        monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", when)
    open_storage("s3://bucket/set").write("x", b"data")
    assert len(store.requests) == 1
    assert ("x-amz-checksum-crc32" in store.checksums) == (when is None)


def test_requests_go_through_the_proxy_of_the_environment(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = serve(Reply(206, b"data"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.invalid")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, store.endpoint)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    storage = open_storage("s3://bucket/set")
    assert storage.read("x", 0, 4) == storage.read("x") == b"data"
    assert [is_signed(request) for request in store.requests] == [True, False]
    for request in store.requests:
        assert request.startswith("GET http://store.invalid/bucket/set/x")


def certificate_of_its_own(path: Path) -> Path:
    """A key and a certificate for 127.0.0.1 that nobody else has signed."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "store of tests")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM
    secret = key.private_bytes(
        form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + certificate.public_bytes(form))
    return path


def test_a_store_with_a_foreign_certificate_is_read_only_on_the_users_word(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = certificate_of_its_own(tmp_path / "store.pem")
    store = serve(Reply(206, b"data"), certificate=certificate)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for size_bytes in (4, None):
        with pytest.raises(OSError, match=r"cannot be reached \(SSLError\)"):
            open_storage("s3://bucket/set").read("x", 0, size_bytes)
    assert store.requests == []
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    storage = open_storage("s3://bucket/set")
    assert storage.read("x", 0, 4) == storage.read("x") == b"data"
    assert [is_signed(request) for request in store.requests] == [True, False]


def test_throttling_is_waited_out(serve: Serve) -> None:
    slow = refusal(503, "SlowDown")
    store = serve(slow, slow, refusal(500, "InternalError"), Reply(206, b"data"))
    assert open_storage("s3://bucket/set").read("x", 0, 4) == b"data"
    assert store.ranges == ["bytes=0-3"] * 4


def test_throttling_without_end_is_an_error_with_the_reason(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = serve(refusal(503, "SlowDown", "Please reduce your request rate."))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    for name, size_bytes in (("x", None), ("y", 4)):
        with pytest.raises(OSError, match=r"Please reduce your request rate \(SlowDown\)"):
            open_storage("s3://bucket/set").read(name, 0, size_bytes)
    assert sum("GET /bucket/set/x" in request for request in store.requests) == 2
    assert sum("GET /bucket/set/y" in request for request in store.requests) == 3


@pytest.mark.parametrize("sent", [0, 1, 99_999])
@pytest.mark.parametrize("size_bytes", [None, len(DATA)])
def test_an_answer_that_breaks_off_is_asked_for_again(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, sent: int, size_bytes: int | None
) -> None:
    monkeypatch.setattr(s3, "_BODY_PAUSES_S", (0.01,) * 5)
    store = serve(*[Reply(206, DATA, sent)] * 5, Reply(206, DATA))
    assert open_storage("s3://bucket/set").read("x", 0, size_bytes) == DATA
    assert len(store.requests) == 6


def test_answers_that_always_break_off_are_an_error(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_BODY_PAUSES_S", (0.01,) * 5)
    serve(Reply(206, DATA, 500))
    for size_bytes in (None, len(DATA)):
        with pytest.raises(ConnectionError, match="broke off") as caught:
            open_storage("s3://bucket/set").read("x", 0, size_bytes)
        assert caught.value.filename == "s3://bucket/set/x"


def test_all_readers_outlast_a_moment_without_a_network(
    serve: Serve, aws: Callable[[str], None]
) -> None:
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        aws(f"http://127.0.0.1:{port}")
        storage = open_storage("s3://bucket/set")
        with ThreadPoolExecutor(storage.parallel_reads) as pool:
            reads = [pool.submit(storage.read, "x", 0, 4) for _ in range(64)]
            time.sleep(0.5)
            assert not any(read.done() for read in reads)
            reserved.close()
            serve(Reply(206, b"data"), port=port)
            assert [read.result() for read in reads] == [b"data"] * 64
