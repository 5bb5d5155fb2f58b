"""Compare the built wheel and sdist, in the folder named, with the checkout's files."""

import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Caches; result pages, which are read on the web; scripts, which run from the checkout.
NOT_SHIPPED = ("__pycache__", "results", "studies")


def source_files(package: str, folder: Path) -> set[str]:
    """What the wheel must hold of one source folder: every file but notes and caches."""
    return {
        f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}"
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix != ".md"
        and not any(part in NOT_SHIPPED for part in path.relative_to(folder).parts)
    }


def main(dists: Path) -> str | None:
    """Return what is missing or too much as text, or None where all is well."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    wanted = set[str]()
    for package, folder in config["package-dir"].items():
        wanted |= source_files(package, ROOT / folder)

    wheel = next(dists.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    sdist = next(dists.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tests = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    print(f"{wheel.name}: {len(inside)} files, {wheel.stat().st_size} bytes")
    print(f"{sdist.name}: {len(names)} entries, {sdist.stat().st_size} bytes")
    faults = [f"the wheel lacks {name}" for name in sorted(wanted - inside)]
    faults += [f"the wheel should not hold {name}" for name in sorted(inside - wanted)]
    must = tests | {"pyproject.toml", "LICENSE", "README.md", "shards/README.md"}
    must |= {"CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff"}
    faults += [f"the sdist lacks {name}" for name in sorted(must - names)]
    return "\n".join(faults) or None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
