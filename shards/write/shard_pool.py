"""Writes shards in several processes at once, and hands them back in the order of their plans."""

from collections.abc import Callable, Iterable, Iterator

from accelssl.shards.write.shard_writer import ShardPlan, WrittenShard, write_shard
from accelssl.shards.write.worker_pool import OnStep, run_jobs


def write_shards(
    plans: Iterable[ShardPlan], workers: int, on_progress: Callable[[int], None]
) -> Iterator[WrittenShard]:
    """Write every plan; see `write_shard` for what that leaves on disk, and `run_jobs` for how.

    Calls `on_progress`, in this process, with the number of images dealt with so far.
    Raises OSError when a file cannot be written, and BrokenProcessPool when a worker was killed.
    """
    return run_jobs(_write, plans, workers, on_progress)


def _write(plan: ShardPlan, on_step: OnStep) -> WrittenShard:
    return write_shard(plan, on_image=lambda: on_step(1))
