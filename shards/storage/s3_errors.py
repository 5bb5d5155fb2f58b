"""Errors of S3 and its client as errors of the operating system."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from boto3.exceptions import S3UploadFailedError
from botocore import exceptions as boto
from urllib3.exceptions import HTTPError

# All that boto3 raises; and what urllib3 does while a body streams, which boto3 lets through.
S3_FAILURES = (boto.ClientError, boto.BotoCoreError, S3UploadFailedError, HTTPError)
TRANSFER_FAILURES = (boto.BotoCoreError, HTTPError)

_BAD_CREDENTIALS = {
    "InvalidAccessKeyId": "the store does not know the access key",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key",
    "ExpiredToken": "the credentials have expired",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": "the clocks of this machine and of the store differ",
}
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.TokenRetrievalError,
    boto.SSOError,
    boto.ProfileNotFound,
)
_UNKNOWN_CHECKSUM = ("NotImplemented", "XAmzContentSHA256Mismatch")


@contextmanager
def os_errors(url: str, bucket: str) -> Iterator[None]:
    """Turn every failure of a request about that URL into an OSError."""
    try:
        yield
    except S3_FAILURES as error:
        raise os_error(error, url, bucket) from error


def os_error(error: Exception, url: str, bucket: str) -> OSError:
    """Return the error as an OSError, in the subclass of its errno, about that URL.

    No text from outside that might repeat credentials gets into it.
    """
    if isinstance(error, S3UploadFailedError) and isinstance(error.__context__, boto.ClientError):
        error = error.__context__
    if isinstance(error, boto.ClientError):
        number, text = _refused(error, bucket)
    else:
        number, text = _failed(error)
    return OSError(number, text.rstrip(". \n"), url)


def status_of(error: boto.ClientError) -> int | None:
    """Return the HTTP status of an answer."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def code_of(error: boto.ClientError) -> str:
    """Return S3's name of the error, as in "NoSuchKey"."""
    return str(error.response.get("Error", {}).get("Code", "Unknown"))


def _refused(error: boto.ClientError, bucket: str) -> tuple[int, str]:
    """Return errno and text for an answer of the store."""
    code, status = code_of(error), status_of(error)
    message = str(error.response.get("Error", {}).get("Message", "")).rstrip(".")
    said = f"{message} ({code})" if message else f"the store answers {code}"
    if code == "NoSuchBucket":
        # Not ENOENT: no name in that place can be there, nor be written.
        return errno.ENODEV, f"there is no bucket {bucket}"
    if code in _BAD_CREDENTIALS:
        return errno.EACCES, f"{_BAD_CREDENTIALS[code]} ({code})"
    if status in (401, 403):
        return errno.EACCES, said
    if status == 404:
        return errno.ENOENT, "there is no such object"
    if code in _UNKNOWN_CHECKSUM:
        said += "; for a store without checksums set AWS_REQUEST_CHECKSUM_CALCULATION=when_required"
    return errno.EIO, said


def _failed(error: Exception) -> tuple[int, str]:
    """Return errno and text for a missing or incomplete answer."""
    if isinstance(error, _NO_CREDENTIALS):
        return errno.EACCES, f"no usable credentials ({_about_credentials(error)})"
    if isinstance(error, boto.ConnectionError):
        where = urlsplit(str(error.kwargs.get("endpoint_url", ""))).netloc.rpartition("@")[2]
        return errno.EHOSTUNREACH, f"{where or 'the store'} cannot be reached ({_kind(error)})"
    if isinstance(error, boto.ReadTimeoutError):
        return errno.ETIMEDOUT, "the store does not answer"
    if isinstance(error, boto.HTTPClientError | boto.IncompleteReadError | HTTPError):
        return errno.ECONNRESET, f"the connection broke off ({_kind(error)})"
    return errno.EIO, f"{error} ({_kind(error)})"


def _about_credentials(error: boto.BotoCoreError) -> str:
    # A credential program's own output is not for messages.
    return _kind(error) if isinstance(error, boto.CredentialRetrievalError) else str(error)


def _kind(error: Exception) -> str:
    return type(error).__name__
