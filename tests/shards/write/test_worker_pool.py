"""Jobs in other processes: order, progress, errors. Kills and interrupts: test_sharding_job.py."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

JOBS = 30
# A script: the processes of the pool import the work from where it is defined.
SCRIPT = f"""
import json, os, sys, time
from accelssl.shards.write.worker_pool import run_jobs

def work(number, on_step):
    on_step(number)
    if number == int(sys.argv[2]):
        raise ValueError(f"job {{number}}")
    time.sleep(0.3 / number)  # the first ones take longest
    on_step(1)
    return number, os.getpid()

if __name__ == "__main__":
    taken, progress, results, ahead, error = [], [], [], 0, None

    def jobs():
        for number in range(1, {JOBS} + 1):
            taken.append(number)
            yield number

    try:
        for result in run_jobs(work, jobs(), int(sys.argv[1]), progress.append):
            results.append(result)
            ahead = max(ahead, len(taken) - len(results))
    except ValueError as raised:
        error = str(raised)
    print(json.dumps([results, progress, ahead, error, os.getpid()]))
"""


class Outcome(NamedTuple):
    results: list[tuple[int, int]]
    """Of each job its number and its process."""
    progress: list[int]
    ahead: int
    error: str | None
    parent: int


def run(tmp_path: Path, workers: int, failing: int = 0) -> Outcome:
    (tmp_path / "jobs.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "jobs.py"), str(workers), str(failing)]
    return Outcome(*json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_jobs_and_every_step_is_counted_once(
    tmp_path: Path, workers: int
) -> None:
    outcome = run(tmp_path, workers)
    assert [number for number, _ in outcome.results] == list(range(1, JOBS + 1))
    assert outcome.progress == sorted(outcome.progress)
    assert outcome.progress[-1] == sum(range(1, JOBS + 1)) + JOBS
    processes = {process for _, process in outcome.results}
    assert (outcome.parent in processes) == (workers == 1)
    assert len(processes) <= workers
    assert outcome.ahead <= 2 * workers


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_a_job_comes_in_its_turn(tmp_path: Path, workers: int) -> None:
    outcome = run(tmp_path, workers, failing=4)
    assert outcome.error == "job 4"
    assert [number for number, _ in outcome.results] == [1, 2, 3]


COUNT = """
import os
from accelssl.shards.write.worker_pool import usable_cores
print(usable_cores())
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(usable_cores())
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system cannot tell")
def test_cores_are_those_this_process_may_use() -> None:
    counted = subprocess.run(
        [sys.executable, "-c", COUNT], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    # nproc would count the threads that OpenMP is to use, if that is set.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    usable = subprocess.run(
        ["nproc"], stdout=subprocess.PIPE, check=True, text=True, env=environment
    ).stdout
    assert counted.split() == [usable.strip(), "1"]
