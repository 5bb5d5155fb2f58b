"""What `accelssl paper-tables` prints: for a terminal, as Markdown, or as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from accelssl.errors import UserError
from accelssl.formats import aligned
from accelssl.train.paper.paper_notes import INCONSISTENCIES
from accelssl.train.paper.paper_tables import CONVENTIONS, Cell, Table, tables

TITLE = "Accelerating Augmentation Invariance Pretraining (NeurIPS 2024): costs and budgets again"
COUNTING = (
    "patches196: patch tokens over 196. text197: tokens with CLS over 197. A cell is reproduced "
    "where its value rounds to what is printed."
)
NOTES = "Inconsistencies, and the choices made here"


def paper_text(*, as_json: bool, as_markdown: bool) -> str:
    """All tables and notes. UserError when two forms are asked for."""
    if as_json and as_markdown:
        raise UserError("--json and --markdown were given together.", "Give one of them.")
    if as_json:
        return json.dumps(_facts(), indent=1)
    return _markdown() if as_markdown else _terminal()


def _facts() -> dict[str, Any]:
    return {
        "tables": [
            {
                "name": table.name,
                "about": table.about,
                "reproduced_by": table.reproduced_by,
                "cells": [asdict(c) | {"reproduced_by": c.reproduced_by} for c in table.cells],
            }
            for table in tables()
        ],
        "inconsistencies": [asdict(note) for note in INCONSISTENCIES],
    }


def _terminal() -> str:
    parts = [
        "\n".join([table.name, table.about, *aligned(_rows(table)), _verdict(table)]).rstrip()
        for table in tables()
    ]
    notes = (f"{i}. {note.what}\n   -> {note.choice}" for i, note in enumerate(INCONSISTENCIES, 1))
    return "\n\n".join([TITLE, COUNTING, *parts, "\n".join([NOTES, *notes])])


def _markdown() -> str:
    parts = [f"# {TITLE}", COUNTING]
    for table in tables():
        head, *rows = _rows(table)
        lines = [_line(head), _line(["---", *["---:"] * (len(head) - 1)]), *map(_line, rows)]
        parts += [f"## {table.name}", table.about, "\n".join(lines), _verdict(table)]
    notes = (f"{i}. {note.what} *{note.choice}*" for i, note in enumerate(INCONSISTENCIES, 1))
    return "\n\n".join(part for part in [*parts, f"## {NOTES}", "\n".join(notes)] if part)


def _rows(table: Table) -> list[list[str]]:
    """The head, and a row a cell; a table without printed numbers has no columns for them."""
    has_printed = any(cell.printed is not None for cell in table.cells)
    printed, judged = (["printed"], ["reproduced by"]) if has_printed else ([], [])
    return [
        ["", *printed, *CONVENTIONS, *judged],
        *(_row(cell, has_printed) for cell in table.cells),
    ]


def _row(cell: Cell, has_printed: bool) -> list[str]:
    values = [_figure(cell, cell.values[convention]) for convention in CONVENTIONS]
    if not has_printed:
        return [cell.name, *values]
    return [cell.name, cell.printed or "", *values, _judged(cell)]


def _figure(cell: Cell, value: float) -> str:
    """With a digit more than is printed; whole numbers that are printed so, or large, as such."""
    if value == int(value) and (value >= 1000 or (cell.printed and not cell.decimals)):
        return f"{value:,.0f}"
    return f"{value:.{cell.decimals + 1}f}"


def _judged(cell: Cell) -> str:
    if cell.printed is None:
        return ""
    by = cell.reproduced_by
    if len(by) == len(CONVENTIONS):
        return "both"
    return by[0] if by else "neither"


def _verdict(table: Table) -> str:
    """Who reproduces a table, where that can be said."""
    if table.are_readings or all(cell.printed is None for cell in table.cells):
        return ""
    by = table.reproduced_by
    if len(by) == len(CONVENTIONS):
        return "Both reproduce all of it."
    return f"Only {by[0]} reproduces all of it." if by else "Neither reproduces all of it."


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
