"""Read batches in a separate process, so that reading does not hold the trainer's Python lock.

512 reads per batch, and the draws for their images, would delay the threads that launch kernels.
The bytes come back in shared memory, which later batches reuse. A reader process ends when the
process that started it ends.
"""

import contextlib
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accelssl.errors import UserError
from accelssl.pipeline.draws.draws import Drawing, Drawn
from accelssl.pipeline.draws.order import Plan
from accelssl.pipeline.read.batch_reader import BatchReader, Extents
from accelssl.shards.shard_set import Split, open_shards

CLOSING_S = 5.0


class SharedMemory:
    """Memory shared by processes; pages take space once they are written."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes, self.descriptor = max(1, size_bytes), -1
        if hasattr(os, "memfd_create"):  # containers limit /dev/shm, but not memfd
            self.descriptor = os.memfd_create("accelssl-batch", os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        os.ftruncate(self.descriptor, self.size_bytes)
        self.array = mapped(self.descriptor, self.size_bytes)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def mapped(descriptor: int, size_bytes: int) -> NDArray[np.uint8]:
    """Map a file descriptor into memory and return an array of its bytes."""
    return np.frombuffer(mmap.mmap(descriptor, size_bytes), dtype=np.uint8)


class ReaderProcess:
    """Process that reads batches of a split, one at a time. Only one thread at a time may use it.

    `read` raises UserError if the shard set has changed since it was opened.
    """

    def __init__(self, split: Split) -> None:
        ours, theirs = socket.socketpair()
        descriptors_ours, descriptors_theirs = socket.socketpair()
        passed = (theirs.fileno(), descriptors_theirs.fileno())
        found_in = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
        self._process = subprocess.Popen(
            # -P: files in the working folder must not shadow libraries.
            [sys.executable, "-P", "-m", __name__, *map(str, passed)],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": found_in},
        )
        theirs.close()
        descriptors_theirs.close()
        self._socket, self._descriptors = ours, descriptors_ours
        self._connection = Connection(os.dup(ours.fileno()))
        self._known: dict[int, int] = {}
        self._connection.send((split.storage.location, split.name, split.digest))

    def read(self, plan: Plan, memory: SharedMemory, drawing: Drawing) -> tuple[Extents, Drawn]:
        """Return the extents as BatchReader.read does, and the draws of `drawing` for the batch.

        Pickles `drawing`. Raises UserError also if the process was killed.
        """
        pickled = pickle.dumps(drawing)
        try:
            if memory.descriptor not in self._known:
                self._known[memory.descriptor] = len(self._known)
                socket.send_fds(self._descriptors, [b"m"], [memory.descriptor])
            number = self._known[memory.descriptor]
            self._connection.send((plan, pickled, number, memory.size_bytes))
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise UserError(
                f"A reader process ended unexpectedly (exit code {self._exit_code()}).",
                "Memory may have run out. Continue with --resume and fewer --readers.",
            ) from error
        if isinstance(answer, Exception):
            raise answer
        extents, drawn = answer
        return extents, drawn

    def let_go(self) -> None:
        """Ask the process to end, without waiting."""
        with contextlib.suppress(OSError):  # the process has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the process after the batch that it is reading."""
        self.let_go()
        self._connection.close()
        self._socket.close()
        self._descriptors.close()
        try:
            self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _exit_code(self) -> int | str:
        try:
            return self._process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            return "none yet"


def main() -> None:
    """Answer the requests of the parent process until it closes the connection."""
    # A scheduler may signal all processes of a job, but the trainer needs a batch to end cleanly.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))
    descriptors = socket.socket(fileno=int(sys.argv[2]))
    memories: list[NDArray[np.uint8]] = []
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        reader = _opened(*connection.recv())
        while True:
            plan, pickled, number, size_bytes = connection.recv()
            if number == len(memories):
                _, (descriptor,), _, _ = socket.recv_fds(descriptors, 1, 1)
                memories.append(mapped(descriptor, size_bytes))
                os.close(descriptor)
            connection.send(_answer(reader, plan, memories[number].data, pickled))


def _opened(location: str, name: str, digest: str) -> BatchReader | Exception:
    try:
        shards = open_shards(location)
        if shards.digest != digest:
            raise UserError(
                f"{location} has changed since this run opened it.", "Start the command again."
            )
        return BatchReader(shards.split(name))
    except Exception as error:
        return _portable(error)


def _answer(
    reader: BatchReader | Exception, plan: Plan, memory: memoryview, pickled: bytes
) -> tuple[Extents, Drawn] | Exception:
    if isinstance(reader, Exception):
        return reader
    try:
        drawing: Drawing = pickle.loads(pickled)
        extents = reader.read(plan.samples_N, memory)
        return extents, drawing(plan, extents.sizes_N2)
    except Exception as error:
        return _portable(error)


def _portable(error: Exception) -> Exception:
    """Return an error that can be pickled and raised in another process."""
    if isinstance(error, UserError):
        return error
    return RuntimeError(f"Error in a reader process:\n{traceback.format_exc()}")


if __name__ == "__main__":
    main()
