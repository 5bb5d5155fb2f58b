"""Ranks meet in a store that holds what earlier starts have left, some of them half-way."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from accelssl.errors import UserError
from accelssl.train.ranks.rendezvous import Meeting, meet

SOON_S = 20.0


class Nodes:
    """A store as torchrun keeps it, and a client for each process that comes."""

    def __init__(self) -> None:
        timeout = timedelta(seconds=SOON_S)
        self._server = TCPStore("127.0.0.1", 0, is_master=True, timeout=timeout)
        self._timeout = timeout

    def client(self) -> Store:
        client: Store = TCPStore("127.0.0.1", self._server.port, timeout=self._timeout)
        return client

    def start(self, counts: list[int], *, late: int | None = None) -> list[Meeting]:
        """One process a rank, with its node's count of restarts; rank `late` comes last."""
        order = sorted(range(len(counts)), key=lambda rank: rank == late)
        with ThreadPoolExecutor(len(counts)) as processes:
            coming = {
                rank: processes.submit(meet, self.client(), rank, len(counts), counts[rank], SOON_S)
                for rank in order
            }
            return [coming[rank].result() for rank in range(len(counts))]


def test_all_ranks_of_a_start_are_in_one_place_that_no_other_start_has() -> None:
    nodes = Nodes()
    for start in range(3):
        meetings = nodes.start([start] * 3, late=start)
        assert [meeting.restarts for meeting in meetings] == [start] * 3
        meetings[1].store.set("address", f"of start {start}")
        assert [m.store.get("address").decode() for m in meetings] == [f"of start {start}"] * 3


def test_nodes_that_count_differently_agree_on_the_most() -> None:
    """A node whose ranks were only sent home because another's failed does not count it."""
    nodes = Nodes()
    assert [meeting.restarts for meeting in nodes.start([0, 0])] == [0, 0]
    assert [meeting.restarts for meeting in nodes.start([0, 1])] == [1, 1]
    assert [meeting.restarts for meeting in nodes.start([0, 1])] == [2, 2]
    elsewhere = Nodes()
    assert [meeting.restarts for meeting in elsewhere.start([0, 3])] == [3, 3]


def test_a_start_that_broke_off_before_all_had_come_is_no_trap() -> None:
    nodes = Nodes()
    client = nodes.client()
    client.add("starts", 1)  # rank 0 of a start, killed while it waits for the others
    client.set("latest", "start1")
    client.set("start1/1", "a process that is gone 0")
    meetings = nodes.start([0, 1], late=0)
    assert [meeting.restarts for meeting in meetings] == [1, 1]


def test_the_first_failure_is_what_all_hear_of() -> None:
    nodes = Nodes()
    first, second = nodes.start([0, 0])
    assert second.first_failure() is None
    first.tell_failure(0, "Image 17 is cut off.")
    second.tell_failure(1, "lost")
    for meeting in (first, second):
        assert meeting.first_failure() == "rank 0: Image 17 is cut off."


def test_a_store_that_is_gone_says_nothing() -> None:
    nodes = Nodes()
    meeting = nodes.start([0, 0])[1]
    del nodes._server
    meeting.tell_failure(1, "lost")
    assert meeting.first_failure() is None


def test_a_rank_0_that_does_not_come_is_not_waited_for_for_ever() -> None:
    nodes = Nodes()
    client = nodes.client()
    client.set("latest", "start1")
    with pytest.raises(UserError, match=r"Rank 0 has not come .*--nnodes"):
        meet(client, 1, 2, 0, timeout_s=0.3)
