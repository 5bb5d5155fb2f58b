"""The command line: instant help, and bad input as two sentences and exit code 2."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path

import pytest

from accelssl import cli
from accelssl.errors import UserError

TINY = "--model vit_tiny_patch16_224 --batch 8 --device cpu"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `accelssl ARGUMENTS`, in this process."""
    sys.argv = ["accelssl", *arguments]
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    printed = capsys.readouterr()
    code = stopped.value.code
    return (code if isinstance(code, int) else 0), printed.out, printed.err


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ACCELSSL_KERNELS", "false", "ACCELSSL_KERNELS is 'false' in the environment."),
        ("ACCELSSL_FAST_GELU", "0", "ACCELSSL_FAST_GELU is set in the environment, and"),
    ],
)
def test_a_switch_that_would_switch_nothing_is_refused(
    name: str,
    value: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(name, value)
    code, _, err = run(capsys, "recipes")
    assert code == 2 and err.startswith(f"error: {said}")
    monkeypatch.delenv(name)
    monkeypatch.setenv("ACCELSSL_KERNELS", "torch")
    assert run(capsys, "recipes")[0] == 0


def test_help_imports_nothing_heavy() -> None:
    """What makes it instant; the time itself depends on the machine."""
    code = (
        "import sys\nsys.argv = ['accelssl', '--help']\nfrom accelssl.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'numpy', 'timm', 'nvidia', 'matplotlib', 'PIL'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "shard-imagenet" in shown.stdout


COMMANDS = [command.name for command in cli.app.registered_commands if command.name]
COMMANDS += [c.callback.__name__ for c in cli.app.registered_commands if not c.name and c.callback]


def test_the_help_says_what_each_command_is_for_in_a_whole_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "--help")
    commands = " ".join(out.partition("Commands:")[2].split())
    assert code == 0 and "..." not in commands
    for before, after in pairwise([*COMMANDS, "A first run"]):
        assert re.search(rf"{before} .*\. {after} ", commands), before


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_is_for_with_an_example(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0 and f"Example: accelssl {command}" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --model vit_huge", "vit_huge"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --model resnet50", "resnet50"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --patch 16 --drop 0.999", "0.999"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --drop 1", "1"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --patch 32", "32"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --size 224 --patch 24", "224"),
        (f"train --data SHARDS --out RUN --budget 2 {TINY}", "budget of 2"),
        (f"train --data SHARDS --out RUN --budget lots {TINY}", "lots"),
        (f"train --data SHARDS --out RUN {TINY}", "--budget"),
        (f"train --out RUN --budget 1k {TINY}", "--data"),
        (f"train --algo byol --data SHARDS --out RUN --budget 1k {TINY}", "byol"),
        (f"train --data MISSING --out RUN --budget 1k {TINY}", "missing"),
        (f"train --data SHARDS --out RUN --budget 9k {TINY} --batch 999", "999"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --batch 1", "--batch"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --lr -1", "-1"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --size=-240", "-240"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --size 0", "0"),
        (f"train --data SHARDS --out RUN --budget= {TINY}", "Budget"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --model=", "''"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --precision fp8", "fp8"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --device tpu", "tpu"),
        (f"train --data SHARDS --out RUN --budget 1k {TINY} --schedule MISSING", "missing"),
        (f"train --data SHARDS --out FULL --budget 1k {TINY}", "full"),
        (f"train --data SHARDS --out FILE/run --budget 1k {TINY}", "file/run"),
        (f"train --out MISSING --resume {TINY}", "missing"),
        ("shard-imagenet EMPTY RUN", "empty"),
        ("shard-imagenet MISSING RUN", "missing"),
        ("shard-imagenet FULL SHARDS", "shards"),
        ("evaluate MISSING", "missing"),
        ("evaluate EMPTY --protocol linear", "empty"),
        ("evaluate EMPTY --protocol logistic", "logistic"),
        ("report EMPTY", "empty"),
        ("demo --out FULL", "full"),
    ],
)
def test_bad_input_is_one_sentence_on_what_and_one_on_what_to_do(
    capsys: pytest.CaptureFixture[str],
    shard_dir: Path,
    tmp_path: Path,
    arguments: str,
    named: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    (tmp_path / "file").touch()
    places = {"SHARDS": shard_dir} | {
        name.upper(): tmp_path / name for name in ("run", "missing", "empty", "full", "file")
    }
    words = [
        str(places[word]) if word in places else word.replace("FILE", str(tmp_path / "file"))
        for word in arguments.split()
    ]
    code, _, err = run(capsys, *words)
    assert code == 2 and "Traceback" not in err
    what, *remedy = err.removeprefix("error: ").strip().splitlines()
    assert named in err and what and "".join(remedy).strip()
    assert not (tmp_path / "run").exists() or not any((tmp_path / "run").glob("manifest*"))


def test_the_whole_way_from_pictures_to_report(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path
) -> None:
    pictures, shards, folder = shard_dir.parent / "pictures", tmp_path / "s", tmp_path / "run"
    assert run(capsys, "shard-imagenet", str(pictures), str(shards))[0] == 0
    (tmp_path / "stages.json").write_text(
        '[{"until": 0.5, "p": 48, "drop": 0.5}, {"until": 1.0, "p": 40, "drop": 0.25}]'
    )
    options = f"--budget 60 --schedule {tmp_path / 'stages.json'} --head-hidden 16 --no-baseline"
    code, _, err = run(
        capsys,
        *f"train --algo simclr --data {shards} --out {folder} {TINY} {options}".split(),
    )
    assert code == 0, err
    code, out, _ = run(capsys, "evaluate", str(folder), "--protocol", "nn", "--json")
    scores = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    assert {"trained", "untrained", "pixels"} <= scores.keys()
    page = (folder / "report.html").read_text()
    assert "p48 d0.5" in page and f"{scores['trained']['nn1']:.1f}" in page


def test_resuming_with_another_setting_names_both(
    capsys: pytest.CaptureFixture[str], shard_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(
        capsys,
        *f"train --data {shard_dir} --out {folder} {TINY} --budget 30 --patch 48".split(),
        *["--head-hidden", "16", "--no-baseline"],
    )
    for changed, named in [("--batch 16", "batch 8"), ("--budget 60", "budget 30")]:
        code, _, err = run(capsys, "train", "--out", str(folder), "--resume", *changed.split())
        assert code == 2 and named in err
    moved = shutil.copytree(shard_dir, tmp_path / "moved")
    code, _, err = run(
        capsys, *f"train --out {folder} --resume --data {moved} --no-baseline".split()
    )
    assert code == 0, err


def test_an_error_keeps_its_two_parts_through_another_process() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(UserError("It is wrong.", "Do this.")))
    assert (error.what, error.remedy) == ("It is wrong.", "Do this.")


def test_the_installed_command_is_main_which_turns_bad_input_into_exit_code_2() -> None:
    (script,) = entry_points(group="console_scripts", name="accelssl")
    assert script.load() is cli.main


def test_waiting_threads_and_hardware_queues_are_set_before_torch_unless_the_user_did() -> None:
    code = (
        "import os, sys\nfrom accelssl.cli import main\nsys.argv = ['accelssl', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules\n"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['CUDA_DEVICE_MAX_CONNECTIONS'])"
    )
    user = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    user["CUDA_DEVICE_MAX_CONNECTIONS"] = "16"
    shown = subprocess.run([sys.executable, "-c", code], env=user, capture_output=True, text=True)
    assert shown.stdout.splitlines()[-1] == "passive 16"


def test_a_full_disk_is_bad_luck_with_a_remedy_not_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "run/log.jsonl")

    monkeypatch.setattr(cli, "app", full)
    code, _, err = run(capsys)
    assert code == 2 and "run/log.jsonl" in err and "--resume" in err


@pytest.mark.parametrize("is_of_an_interrupt", [True, False])
def test_an_import_that_ctrl_c_has_broken_is_an_interrupt_and_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_of_an_interrupt: bool
) -> None:
    def fails(*_: object) -> None:
        try:
            raise KeyboardInterrupt if is_of_an_interrupt else OSError("no such library")
        except BaseException:
            raise ImportError("initialization failed")  # noqa: B904

    monkeypatch.setattr(cli, "app", fails)
    if is_of_an_interrupt:
        assert run(capsys, "doctor") == (130, "", "")
    else:
        with pytest.raises(ImportError, match="initialization failed"):
            cli.main()
