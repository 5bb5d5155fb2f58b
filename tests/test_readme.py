"""What README shows is what works: its commands run, its files exist, its schedule parses."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from accelssl import cli
from accelssl.train.config.schedule import from_json

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"

pytestmark = pytest.mark.skipif(not README.exists(), reason="needs the checkout")


def blocks() -> list[str]:
    return re.findall(r"```\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_every_command_of_the_tour_runs(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On small pictures, for a small budget; otherwise as written."""
    tour = next(block for block in blocks() if "shard-imagenet" in block)
    lines = [line.partition("  #")[0] for line in tour.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("accelssl")]
    named = [command[1] for command in commands]
    assert named == ["shard-imagenet", "train", "evaluate", "export"]
    (tmp_path / "images").symlink_to(shard_dir.parent / "pictures")
    monkeypatch.chdir(tmp_path)
    smaller = {"~/images": "images", "20M": "60", "vit_small_patch16_224": "vit_tiny_patch16_224"}
    for command in commands:
        words = [smaller.get(word, word) for word in command[1:]]
        if words[0] == "train":
            words += ["--batch", "8", "--head-hidden", "16", "--no-baseline"]
        monkeypatch.setattr(sys, "argv", ["accelssl", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code in (0, None), command
    assert (tmp_path / "run" / "report.html").exists()
    assert (tmp_path / "vit.safetensors").exists()


def test_its_schedule_is_one() -> None:
    (text,) = re.findall(r"^(\[\{.*?\}\])", README.read_text(), flags=re.MULTILINE)
    assert len(from_json(json.loads(text)).stages) == 2


def test_the_files_it_links_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text())
    assert len(links) >= 5
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_what_is_said_of_many_gpus_are_options_that_there_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the command; the script is one that bash can read."""
    text = (ROOT / "docs" / "many_gpus.md").read_text()
    (script,) = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    commands = re.findall(r"-m accelssl train(.*?[^\\])$", text, flags=re.DOTALL | re.MULTILINE)
    spoken_of = re.findall(r"`(--[a-z][^`]*)`", text.partition("## When")[2])
    used = set(re.findall(r"--[a-z-]+", " ".join([*commands, *spoken_of])))
    assert len(commands) == 3 and used >= {"--data", "--resume", "--restart-epoch", "--keep-at"}
    monkeypatch.setattr(sys, "argv", ["accelssl", "train", "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        cli.main()
    assert used - {"--max-restarts"} <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


def test_its_map_names_every_module() -> None:
    """Each file of the source folders is in the map, by its name."""
    text = next(block for block in blocks() if block.startswith("src/accelssl/"))
    named = set(re.findall(r"[a-z0-9_]+", text))
    files = [f for top in ("src", "pipeline", "model", "train") for f in (ROOT / top).rglob("*.py")]
    missing = {f.stem for f in files} - named - {"__init__", "__main__", "neighbours", "run"}
    assert missing == set()
