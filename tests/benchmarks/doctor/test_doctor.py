"""The doctor as a whole: every check is heard of, none stops the others, the exit code tells."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from accelssl import cli
from accelssl.benchmarks.doctor import chart, decoder, examination, op_equality, storage
from accelssl.benchmarks.doctor.examination import Check, checks_for, examine
from accelssl.benchmarks.doctor.finding import Context, Finding, Verdict, device_to_look_at
from accelssl.errors import UserError


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    sys.argv = ["accelssl", "doctor", *arguments]
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    printed = capsys.readouterr()
    code = stopped.value.code
    return (code if isinstance(code, int) else 0), printed.out, printed.err


def finds(verdict: Verdict, found: str = "3 [of] 4", remedy: str = "") -> Check:
    def check_made_up(context: Context) -> Finding:
        return Finding("made up", verdict, found, remedy)

    return check_made_up


def check_that_throws(context: Context) -> Finding:
    raise ZeroDivisionError("no rate")


def check_that_refuses(context: Context) -> Finding:
    raise UserError("It is missing.", "Install it.")


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(torch.device("cpu"), tmp_path)


def test_a_check_that_throws_is_broken_with_its_text_and_the_rest_go_on(
    monkeypatch: pytest.MonkeyPatch, context: Context
) -> None:
    checks = (finds("ok"), check_that_throws, check_that_refuses, finds("slow"))
    monkeypatch.setattr(examination, "checks_for", lambda context: checks)
    heard: list[str] = []
    found = examine(context, heard.append)
    assert [f.verdict for f in found.findings] == ["ok", "broken", "broken", "slow"]
    assert "ZeroDivisionError: no rate" in found.findings[1].found and found.findings[1].remedy
    refused = Finding("that refuses", "broken", "It is missing.", "Install it.")
    assert found.findings[2] == refused
    assert heard == ["made up", "that throws", "that refuses", "made up"] and found.is_broken


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [(["ok", "absent"], 0), (["ok", "slow"], 0), (["broken", "ok"], 1)],
)
def test_the_exit_code_is_1_when_something_is_broken_and_else_0(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdicts: list[Verdict],
    code: int,
) -> None:
    checks = tuple(finds(verdict, remedy='pip install "a[b]"') for verdict in verdicts)
    monkeypatch.setattr(examination, "checks_for", lambda context: checks)
    got, out, _ = run(capsys, "--device", "cpu")
    assert got == code
    lines = out.splitlines()
    assert [line.split()[2] for line in lines[0 : 2 * len(verdicts) : 2]] == verdicts
    assert '-> pip install "a[b]"' in out and "3 [of] 4" in out and "\x1b" not in out
    got, out, _ = run(capsys, "--device", "cpu", "--json")
    assert got == code
    assert json.loads(out) == [
        {"name": "made up", "verdict": v, "found": "3 [of] 4", "remedy": 'pip install "a[b]"'}
        for v in verdicts
    ]


def test_columns_are_aligned_and_long_texts_stay_in_theirs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = Finding("b", "absent", "word " * 60)
    both = (Finding("a long name", "ok", "short"), long)
    chart.show(examination.Examination(both, 1.0))
    first, *rest, summary = capsys.readouterr().out.splitlines()
    column = first.index("short")
    assert all(line[:column].strip() in ("b   absent", "b            absent", "") for line in rest)
    assert len(rest) > 2 and all(line[column] == "w" for line in rest)
    assert summary.startswith("1 ok, 1 absent; looked at in 1 s")


def test_this_machine_without_a_gpu_is_looked_over_and_nothing_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shard_dir: Path
) -> None:
    """The real checks, in small."""
    monkeypatch.setattr(storage, "TRIAL_BYTES", 2**24)
    monkeypatch.setattr(decoder, "_SECONDS", 0.1)
    monkeypatch.setattr(op_equality, "_SIDES_P", (30,))
    code, out, err = run(capsys, "--device", "cpu", "--json", "--data", str(shard_dir))
    findings = {line["name"]: line for line in json.loads(out)}
    assert code == 0, (out, err)
    assert findings["GPU"]["verdict"] == "absent"
    for right in ("torch", "DALI", "fused op", "shards to tokens, cpu", "shard set"):
        assert findings[right]["verdict"] == "ok", findings[right]
    assert "60 samples" in findings["shard set"]["found"]
    assert all(line["remedy"] for line in findings.values() if line["verdict"] == "slow")


def test_without_dali_it_says_so_and_looks_at_the_rest() -> None:
    script = (
        "import sys\nsys.modules['nvidia.dali'] = None\nimport torch\nfrom pathlib import Path\n"
        "from accelssl.benchmarks.doctor import examination as e\n"
        "from accelssl.benchmarks.doctor.finding import Context\n"
        "import tempfile\n"
        "e.checks_for = lambda context: (e.check_dali_package, e.check_data_path_on_cpu,\n"
        "    e.check_decoder_on_cpu, e.check_cores)\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    found = e.examine(Context(torch.device('cpu'), Path(folder)))\n"
        "for f in found.findings: print(f.verdict, f.found, f.remedy)"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    *broken, cores = ran.stdout.splitlines()
    assert len(broken) == 3 and all(line.startswith("broken NVIDIA DALI") for line in broken)
    assert all("accelssl[cu1" in line for line in broken) and not cores.startswith("broken")


def test_on_a_gpu_every_check_of_it_is_made_and_without_one_none(tmp_path: Path) -> None:
    of_gpu, of_cpu = (
        {check.__name__ for check in checks_for(Context(torch.device(name), tmp_path))}
        for name in ("cuda", "cpu")
    )
    all_checks = {name for name in vars(examination) if name.startswith("check_")}
    assert of_gpu | of_cpu == all_checks
    assert of_gpu - of_cpu == {
        "check_gpu_memory",
        "check_copies",
        "check_bf16",
        "check_queues",
        "check_effect_of_queues",
        "check_nvrtc",
        "check_triton",
        "check_data_path_on_gpu",
        "check_hardware_decoder",
    }


def test_the_device_is_the_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("auto", "cpu", "cuda", "cuda:7"):
        assert device_to_look_at(name) == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    named = {"auto": "cuda", "cpu": "cpu", "cuda": "cuda", "cuda:1": "cuda:1"}
    assert {name: str(device_to_look_at(name)) for name in named} == named
    with pytest.raises(UserError, match=r"no cuda:2: .* cuda:1\."):
        device_to_look_at("cuda:2")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("--device tpu", "tpu"),
        ("--device cuda:x", "cuda:x"),
        ("--implementation fast", "fast"),
        ("--implementation triton --device cpu", "triton"),
    ],
)
def test_bad_options_are_named_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: str, named: str
) -> None:
    code, _, err = run(capsys, *arguments.split())
    assert code == 2 and named in err and "Traceback" not in err


@pytest.mark.gpu
def test_a_machine_with_a_gpu_is_looked_over_within_a_minute(
    capsys: pytest.CaptureFixture[str],
) -> None:
    began_s = time.perf_counter()
    code, out, _ = run(capsys, "--json")
    took_s = time.perf_counter() - began_s
    print(out, f"{took_s:.1f} s")
    findings = {line["name"]: line for line in json.loads(out)}
    assert code == 0 and took_s < 60
    for right in ("GPU", "NVRTC", "Triton", "fused op", "shards to tokens, cuda"):
        assert findings[right]["verdict"] == "ok", findings[right]
