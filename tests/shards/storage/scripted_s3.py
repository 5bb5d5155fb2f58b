"""A scripted S3 store: it gives prepared answers in turn."""

import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple


class Reply(NamedTuple):
    """An answer of a scripted store. Of its body only `sent` bytes go out, then the line is cut."""

    status: int
    body: bytes = b""
    sent: int | None = None
    region: str | None = None


class Store:
    """An S3 store that answers request n with the n-th reply, and then always with the last one."""

    def __init__(
        self, replies: list[Reply], port: int = 0, certificate: Path | None = None
    ) -> None:
        self.requests: list[str] = []
        self.ranges: list[str | None] = []
        self.checksums: list[str] = []
        store, taking = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                with taking:
                    reply = replies[min(len(store.requests), len(replies) - 1)]
                    store.requests.append(f"{self.command} {self.path}")
                    store.ranges.append(self.headers.get("Range"))
                    store.checksums += [name for name in self.headers if "checksum" in name]
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(reply.body)))
                self.send_header("ETag", '"0"')
                if reply.region:
                    self.send_header("x-amz-bucket-region", reply.region)
                self.end_headers()
                self.wfile.write(reply.body[: reply.sent])
                self.close_connection = reply.sent is not None

            do_GET = do_PUT = do_POST = do_DELETE = answer

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128

        self._server = Server(("127.0.0.1", port), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self.endpoint = self.endpoint.replace("http", "https")
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


Serve = Callable[..., Store]


def refusal(status: int, code: str, message: str = "Something is wrong.") -> Reply:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Reply(status, body.encode())


def is_signed(request: str) -> bool:
    return "X-Amz-Signature=" in request
