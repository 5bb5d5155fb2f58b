"""More tars than a process may usually open."""

import subprocess
import sys
import textwrap

import pytest

from accelssl.shards.shard_set import ShardSet

resource = pytest.importorskip("resource")


def run(soft: int, hard: int, body: str) -> subprocess.CompletedProcess[str]:
    script = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
    script += textwrap.dedent(body)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("soft", "hard", "files", "expected"),
    [(64, 4096, 1000, 1512), (64, 600, 1000, 600), (2000, 4096, 1000, 2000)],
)
def test_the_limit_is_raised_as_far_as_needed_and_allowed(
    soft: int, hard: int, files: int, expected: int
) -> None:
    done = run(
        soft,
        hard,
        f"""
        from accelssl.shards.open_files import allow_open_files
        allow_open_files({files})
        print(resource.getrlimit(resource.RLIMIT_NOFILE))
        """,
    )
    assert done.stdout.strip() == str((expected, hard)), done.stderr


def test_a_limit_that_cannot_be_raised_is_what_the_error_is_about(shard_set: ShardSet) -> None:
    done = run(
        80,
        80,
        f"""
        import os
        from accelssl.errors import UserError
        from accelssl.shards.shard_set import open_shards
        split = open_shards({shard_set.location!r}).split("train")
        taken = []
        try:
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        try:
            split.read(0)
        except UserError as error:
            print(error.remedy)
        """,
    )
    assert "ulimit -n" in done.stdout, done.stderr
