"""Hardware queues: set before CUDA starts, or reported, by the state of the driver."""

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from accelssl.pipeline.decode import hardware_queues
from accelssl.pipeline.decode.hardware_queues import VARIABLE

# A driver that stands in for NVIDIA's: it answers 3, "not initialized", before cuInit.
DRIVER = """
static int started = 0;
int cuInit(unsigned flags) { started = 1; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return started ? 0 : 3; }
"""
PRELUDE = """
import ctypes, os, sys
from accelssl.pipeline.decode import hardware_queues as queues
def start():
    driver = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    assert not queues.cuda_has_started()
    driver.cuInit(0)
    assert queues.cuda_has_started()
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the module to the state of a new process in which CUDA has not started."""
    seen = dict.fromkeys(hardware_queues._what_was_seen, False)
    monkeypatch.setattr(hardware_queues, "_what_was_seen", seen)
    monkeypatch.setattr(hardware_queues, "cuda_has_started", lambda: False)
    monkeypatch.setenv(VARIABLE, "")  # put back afterwards, whatever a test does
    monkeypatch.delenv(VARIABLE)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not hasattr(os, "RTLD_NOLOAD"):
        pytest.skip("needs a C compiler and Linux")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    library = folder / "libcuda.so.1"
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        "driver.c",
        "-o",
        str(library),
    ]
    subprocess.run(command, cwd=folder, check=True)
    return library


def outcome(driver: Path, script: str, **environment: str) -> list[str]:
    """Return the output of a new process that runs the script with this driver."""
    others = {name: value for name, value in os.environ.items() if name != VARIABLE}
    ran = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, str(driver)],
        env=others | environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_what_the_user_set_stays_and_what_is_unset_becomes_32() -> None:
    hardware_queues.set_hardware_queues()
    assert os.environ[VARIABLE] == "32" and hardware_queues.complaint() is None
    os.environ[VARIABLE] = "16"
    hardware_queues.set_hardware_queues()
    assert os.environ[VARIABLE] == "16"


@pytest.mark.parametrize("text", ["1", "8", "31"])
def test_fewer_than_32_are_named_with_the_remedy(text: str) -> None:
    os.environ[VARIABLE] = text
    complaint = hardware_queues.complaint()
    assert complaint is not None
    assert f"{VARIABLE} is {text}:" in complaint and f"Set {VARIABLE}=32" in complaint


@pytest.mark.parametrize("text", ["many", "", "0", "-8", "3.5", "33", "32x", "٣٢"])
def test_what_is_no_number_from_1_to_32_is_named(text: str) -> None:
    os.environ[VARIABLE] = text
    complaint = hardware_queues.complaint()
    assert complaint is not None and repr(text) in complaint and "1 to 32" in complaint


def test_an_unset_variable_is_no_problem_before_cuda_starts() -> None:
    assert hardware_queues.complaint() is None
    assert VARIABLE not in os.environ


def test_set_after_cuda_started_is_too_late(driver: Path) -> None:
    script = "start()\nqueues.set_hardware_queues()\nprint(queues.complaint())"
    (line,) = outcome(driver, script)
    assert "was not set when CUDA started" in line
    assert outcome(driver, script, **{VARIABLE: "32"}) == ["None"]


def test_set_before_cuda_starts_is_in_time(driver: Path) -> None:
    script = "queues.set_hardware_queues()\nstart()\nprint(queues.complaint())"
    assert outcome(driver, script) == ["None"]


def test_a_script_that_sets_it_itself_between_start_and_first_look_is_found_out(
    driver: Path,
) -> None:
    """CUDA started, then this library was imported, then the script set the variable."""
    script = (
        f"start()\nimport importlib\nimportlib.reload(queues)\nos.environ['{VARIABLE}'] = '32'\n"
        "print(queues.complaint())"
    )
    assert "was not set when CUDA started" in outcome(driver, script)[0]


def test_a_process_without_a_driver_has_not_started_cuda(driver: Path) -> None:
    assert outcome(driver, "print(queues.cuda_has_started())") == ["False"]


def test_a_library_user_is_warned_once_and_the_command_line_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.environ[VARIABLE] = "4"
    with pytest.warns(RuntimeWarning, match=f"{VARIABLE} is 4"):
        hardware_queues.warn_once()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hardware_queues.warn_once()
        hardware_queues.tell_once()
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(hardware_queues._what_was_seen, "told", False)
    hardware_queues.tell_once()
    hardware_queues.tell_once()
    told = capsys.readouterr().err
    assert told.startswith(f"warning: {VARIABLE} is 4") and told.count("\n") == 1


def test_where_there_is_time_nobody_is_warned_and_it_is_set() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hardware_queues.warn_once()
    assert os.environ[VARIABLE] == "32"


def test_it_loads_neither_torch_nor_the_driver() -> None:
    script = (
        "import sys\nfrom accelssl.pipeline.decode import hardware_queues\n"
        "hardware_queues.set_hardware_queues(); hardware_queues.complaint()\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert 'libcuda' not in open('/proc/self/maps').read()"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.gpu
def test_the_real_driver_says_when_torch_starts_it() -> None:
    script = (
        "import torch\nfrom accelssl.pipeline.decode import hardware_queues as queues\n"
        "before = queues.cuda_has_started(), queues.complaint()\n"
        "torch.zeros(1, device='cuda')\n"
        "print(before, queues.cuda_has_started())\nprint(queues.complaint())"
    )
    others = {name: value for name, value in os.environ.items() if name != VARIABLE}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=others, check=True, capture_output=True, text=True
    )
    first, second = ran.stdout.splitlines()
    assert first == "(False, None) True" and "was not set when CUDA started" in second
