"""Reading ranges of objects at a third of the cost of boto3's requests.

boto3 builds, signs and parses each request anew: more than a millisecond of Python, during which no
other thread runs. A URL that is signed once reads any range of its object. So boto3 signs one for
each object, and botocore's own connections (with its certificates and proxies) do the rest.

Whatever is not a plain answer is left to an ordinary request, which repeats, redirects, refreshes
credentials or knows what to tell the user.
"""

import os
import threading
import time
from http import HTTPStatus
from typing import Any, NamedTuple

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import URLLib3Session
from botocore.session import Session
from botocore.utils import get_environ_proxies

_VALID_S = 3600
_KEPT_S = 900


class _SignedUrl(NamedTuple):
    text: str
    region: str
    signed_at_s: float


class Ranges:
    """Reader of ranges of a bucket's objects, for any number of threads of one process."""

    def __init__(self, session: Session, bucket: str, options: Config) -> None:
        """Prepare signing. Raise boto3's error for an unusable configuration."""
        self._session = session
        # The one version of signatures that every bucket takes; for URLs, boto3 prefers another.
        self._options = options.merge(Config(signature_version="s3v4"))
        self._signer: Any = session.create_client("s3", config=self._options)
        self._bucket = bucket
        self._url_of_key: dict[str, _SignedUrl] = {}
        self._urls_are_accepted = True
        self._moving = threading.Lock()
        self._http = URLLib3Session(
            verify=_certificates(session),
            proxies=get_environ_proxies(self._signer.meta.endpoint_url),
            timeout=(options.connect_timeout, options.read_timeout),
            max_pool_connections=options.max_pool_connections,
        )

    def read(self, key: str, offset: int, size_bytes: int) -> bytes | None:
        """Return size_bytes > 0 bytes from offset on, or fewer at the end of the object.

        None where anything else came than these bytes: an ordinary request is to follow.
        """
        if not self._urls_are_accepted:
            return None
        known = self._url_of_key.get(key)
        try:
            url = self._sign(key) if known is None or _is_old(known) else known
            asked = {"Range": f"bytes={offset}-{offset + size_bytes - 1}"}
            answer = self._http.send(AWSPreparedRequest("GET", url.text, asked, None, False))
            if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
                data: bytes = answer.content
                return data if _is_whole(data, answer) else None
        except (BotoCoreError, ClientError):
            return None
        self._url_of_key.pop(key, None)
        if url is not known and not _may_come_with_a_good_url(answer.status_code):
            self._sign_otherwise(url.region, answer.headers.get("x-amz-bucket-region"))
        return None

    def _sign_otherwise(self, refused_region: str, bucket_region: str | None) -> None:
        """Sign for the bucket's region if the region was wrong; otherwise stop signing."""
        if bucket_region in (None, refused_region):
            self._urls_are_accepted = False
            return
        with self._moving:
            if bucket_region != self._signer.meta.region_name:  # no other thread has seen to it
                self._signer = self._session.create_client(
                    "s3", region_name=bucket_region, config=self._options
                )

    def _sign(self, key: str) -> _SignedUrl:
        signer = self._signer
        text = signer.generate_presigned_url(
            "get_object", Params={"Bucket": self._bucket, "Key": key}, ExpiresIn=_VALID_S
        )
        url = _SignedUrl(text, signer.meta.region_name, time.monotonic())
        self._url_of_key[key] = url
        return url


def _is_whole(data: bytes, answer: AWSResponse) -> bool:
    """Return True if the body is complete: these connections do not tell a cut from an end."""
    return bool(answer.headers.get("Content-Length") == str(len(data)))


def _may_come_with_a_good_url(status: int) -> bool:
    missing = (HTTPStatus.NOT_FOUND, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
    return status in missing or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _is_old(url: _SignedUrl) -> bool:
    return time.monotonic() - url.signed_at_s > _KEPT_S


def _certificates(session: Session) -> Any:
    """Return boto3's setting for servers' certificates: a file, or True for the usual ones."""
    bundle = session.get_config_variable("ca_bundle")
    return bundle or os.environ.get("REQUESTS_CA_BUNDLE", True)
