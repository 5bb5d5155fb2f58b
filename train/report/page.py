"""The pieces of HTML a report is made of. Every argument is text, escaped here, unless `_html`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from accelssl.formats import ABSENT, percent
from accelssl.train.report.pictures import PictureBlock
from accelssl.train.report.style import STYLE


def page(name: str, body_html: str) -> str:
    """A whole document that refers to nothing outside itself."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body_html}\n</main>\n</body>\n</html>\n"
    )


def title(text: str) -> str:
    return f"<h1>{escape(text)}</h1>"


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, kind: str = "note") -> str:
    """A paragraph of one of the style sheet's kinds: lead, note, warning."""
    return f'<p class="{kind}">{escape(text)}</p>'


def tile(name: str, value: str, more: str = "") -> str:
    """One key figure: what it is, the figure, and what it stands against."""
    absent = "" if any(letter.isdigit() for letter in value) else " absent"
    return (
        f'<div class="card tile"><div class="name">{escape(name)}</div>'
        f'<div class="value{absent}">{escape(value)}</div>'
        f'<div class="more">{escape(more)}</div></div>'
    )


def accuracy_tile(name: str, figures: Mapping[str, float | None]) -> str:
    """Accuracies in per cent as bars, the first of them large and in colour."""
    first = next(iter(figures.values()))
    bars = []
    for number, (label, value) in enumerate(figures.items()):
        width = 0.0 if value is None else min(100.0, max(0.0, value))
        bars.append(
            f'<div class="bar{"" if number else " first"}"><span>{escape(label)}</span>'
            f'<span class="track"><span class="fill" style="display:block;width:{width:.1f}%">'
            f'</span></span><span class="number">{percent(value)}</span></div>'
        )
    return (
        f'<div class="card tile"><div class="name">{escape(name)}</div>'
        f'<div class="value">{percent(first)}</div>{"".join(bars)}</div>'
    )


def tiles(cards_html: Iterable[str], kind: str = "") -> str:
    """Tiles in a row that wraps; kind "wide" gives each at least the width of a plot."""
    return f'<div class="tiles {kind}">{"".join(cards_html)}</div>'


def plots(figures: Iterable[tuple[str, str]]) -> str:
    """(title, svg element) pairs, side by side where there is room."""
    cards = (
        f'<figure class="card plot"><h3>{escape(name)}</h3>{svg_html}</figure>'
        for name, svg_html in figures
    )
    return f'<div class="figures">{"".join(cards)}</div>'


def pictures(blocks: Iterable[PictureBlock]) -> str:
    """Rows of pictures, each a data URI."""
    cards = []
    for block in blocks:
        images = "".join(
            f'<img src="{escape(uri)}" alt="{escape(block.title)}, picture {number}">'
            for number, uri in enumerate(block.images, 1)
        )
        cards.append(
            f'<figure class="card block"><h3>{escape(block.title)}</h3>'
            f'<div class="pictures">{images}</div></figure>'
        )
    return "".join(cards)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], tints: Sequence[str | None]) -> str:
    """Rows of cells; a tint puts a chip of that colour before a row, None marks a total."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = []
    for cells, tint in zip(rows, tints, strict=True):
        chip = "" if tint is None else f'<span class="chip" style="background:{tint}"></span>'
        first, *others = (escape(cell) for cell in cells)
        kind = ' class="total"' if tint is None else ""
        rest = "".join(f"<td>{cell}</td>" for cell in others)
        body.append(f"<tr{kind}><td>{chip}{first}</td>{rest}</tr>")
    return (
        f'<div class="card scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def facts(values: Mapping[str, Any]) -> str:
    """A table of names and values; nested objects become dotted names."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in _flat("", values)
    )
    return f'<div class="card scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'


def code(text: str) -> str:
    return f'<div class="card"><pre><code>{escape(text)}</code></pre></div>'


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
