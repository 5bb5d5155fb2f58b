"""An examination as a table for the terminal, and as JSON."""

import json
from collections import Counter
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from accelssl.benchmarks.doctor.examination import Examination
from accelssl.benchmarks.doctor.finding import Finding, Verdict

_STYLES: dict[Verdict, str] = {
    "ok": "green",
    "slow": "yellow",
    "broken": "bold red",
    "absent": "dim",
}
_WIDTH_IN_A_FILE = 120


def show(examination: Examination) -> None:
    """Print the table on stdout: coloured on a terminal, plain elsewhere."""
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = _WIDTH_IN_A_FILE
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in examination.findings:
        verdict = Text(finding.verdict, _STYLES[finding.verdict])
        table.add_row(Text(finding.name), verdict, _text(finding))
    console.print(table)
    counts = Counter(finding.verdict for finding in examination.findings)
    summary = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _STYLES if counts[verdict])
    console.print(Text(f"{summary}; looked at in {examination.elapsed_s:.0f} s"))


def _text(finding: Finding) -> Text:
    # Not as markup: what is found may hold brackets.
    lines = [finding.found]
    if finding.remedy:
        lines.append(f"-> {finding.remedy}")
    return Text("\n".join(lines))


def to_json(examination: Examination) -> str:
    """Return a JSON list with an object for each line: name, verdict, found, remedy."""
    return json.dumps([asdict(finding) for finding in examination.findings], indent=1)
