"""The HTML pieces of a report, by the macros of report.html.jinja.

A piece is Markup. Every other argument is text, and the template escapes it.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from accelssl.formats import ABSENT, percent

_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters["percent"] = percent
_MACROS: Any = _ENVIRONMENT.get_template("report.html.jinja").module

title: Callable[[str], Markup] = _MACROS.title
heading: Callable[[str], Markup] = _MACROS.heading
code: Callable[[str], Markup] = _MACROS.code
scroll: Callable[[Markup], Markup] = _MACROS.scroll
paragraph: Callable[..., Markup] = _MACROS.paragraph
accuracy_tile: Callable[[str, Mapping[str, float | None]], Markup] = _MACROS.accuracy_tile
tiles: Callable[..., Markup] = _MACROS.tiles
pictures: Callable[..., Markup] = _MACROS.pictures
table: Callable[..., Markup] = _MACROS.table
columns: Callable[[Iterable[tuple[str, Markup]]], Markup] = _MACROS.columns


def page(name: str, parts: Iterable[Markup]) -> str:
    """Return a whole document that refers to nothing outside itself."""
    return str(_MACROS.page(name, parts)).lstrip()


def tile(name: str, value: str, more: str = "") -> Markup:
    """Return one key figure with its name and a comparison. Values without digits are pale."""
    is_absent = not any(letter.isdigit() for letter in value)
    return Markup(_MACROS.tile(name, value, is_absent, more))


def plots(figures: Iterable[tuple[str, str]]) -> Markup:
    """Return plots side by side, from pairs of a title and an svg element."""
    return Markup(_MACROS.plots([(name, Markup(svg)) for name, svg in figures]))


def facts(values: Mapping[str, Any]) -> Markup:
    """Return a table of names and values; nested objects become dotted names."""
    return Markup(_MACROS.facts(_flat("", values)))


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            # A schedule: one line a stage.
            for number, item in enumerate(value, 1):
                text = ", ".join(f"{key} {_plain(part)}" for key, part in item.items())
                yield f"{prefix}{name} {number}", text
        else:
            yield f"{prefix}{name}", _plain(value)


def _plain(value: object) -> str:
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
