"""The pages agree with the project: links, commands, options, the tour, and README's limits."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from accelssl import cli
from accelssl.train.config.schedule import from_json

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "shards" / "README.md",
    ROOT / "train" / "schedules" / "README.md",
]
NOT_OURS = {"--max-restarts", "--nproc-per-node", "--nnodes"}  # torchrun's

pytestmark = pytest.mark.skipif(not README.exists(), reason="needs the checkout")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def blocks(page: Path) -> list[str]:
    return re.findall(r"```[a-z]*\n(.*?)```", page.read_text(), flags=re.DOTALL)


def prose(page: Path) -> str:
    """Return a page without code blocks, tables and the targets of links."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"^\|.*$|^#.*$|^!.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\]\([^)]*\)", "]", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes from a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands_of(page: Path) -> list[list[str]]:
    """Return the words after `accelssl` of each command in a page's code."""
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text())
    lines = "\n".join([*blocks(page), *spans]).replace("\\\n", " ").splitlines()
    found = (re.match(r"(?:.*-m )?accelssl (.*)", line.partition("  #")[0]) for line in lines)
    return [match[1].split() for match in found if match]


def options_by_command() -> dict[str, set[str]]:
    commands = getattr(get_command(cli.app), "commands")  # noqa: B009 (typed as a plain Command)
    return {
        name: {word for p in command.params for word in (*p.opts, *p.secondary_opts)} | {"--help"}
        for name, command in commands.items()
    }


@each_page
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_page
def test_commands_and_their_options_exist(page: Path) -> None:
    known = options_by_command()
    for words in commands_of(page):
        if not re.fullmatch(r"[a-z][a-z-]+", words[0]) or page.name == "CHANGELOG.md":
            continue  # a changelog names commands that were removed
        assert words[0] in known, words
        options = {w.partition("=")[0] for w in words if re.match(r"--[a-z]", w)}
        assert options <= known[words[0]], words


@each_page
def test_options_in_the_text_are_those_of_some_command(page: Path) -> None:
    known = set().union(*options_by_command().values()) | NOT_OURS
    spans = re.findall(r"`(--[a-z][^`]*)`", page.read_text())
    used = {w for span in spans for w in re.findall(r"--[a-z][a-z-]*", span)}
    assert used - known - {"--signal"} == set()  # Slurm's


def test_every_command_of_the_tour_runs(
    shard_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On small pictures, for a small budget; otherwise as written."""
    tour = next(block for block in blocks(README) if "shard-imagenet" in block)
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


def test_the_schedule_parses() -> None:
    text = (ROOT / "docs" / "schedules.md").read_text()
    (schedule,) = re.findall(r"^(\[\{.*?\}\])", text, flags=re.MULTILINE)
    assert len(from_json(json.loads(schedule)).stages) == 2


def test_the_slurm_script_is_bash_and_all_launches_are_checked() -> None:
    page = ROOT / "docs" / "many_gpus.md"
    (script,) = re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    launches = [words for words in commands_of(page) if words[0] == "train"]
    assert sum("--out" in words for words in launches) == 3
    assert {"--resume", "--restart-epoch", "--keep-at"} <= set(
        re.findall(r"--[a-z-]+", page.read_text())
    )


def test_readme_has_at_most_900_words() -> None:
    assert len(README.read_text().split()) <= 900


def test_no_sentence_of_readme_or_docs_has_more_than_25_words() -> None:
    for page in [README, *(ROOT / "docs").glob("*.md")]:
        for sentence in re.split(r"[.!?:]\)?\s|\n\s*\n|\n- ", prose(page)):
            assert len(sentence.split()) <= 25, (page.name, sentence)
