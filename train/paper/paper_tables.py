"""The paper's costs and budgets computed again, under both ways of counting tokens. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass

from accelssl.pipeline.compression import UNCOMPRESSED, Compression
from accelssl.train.config.budget import steps_bought
from accelssl.train.config.cost import Convention, moco_cost
from accelssl.train.methods import METHODS
from accelssl.train.methods.moco import MoCoMethod
from accelssl.train.paper import paper_cells as paper

CONVENTIONS = tuple(Convention)


@dataclass(frozen=True)
class Cell:
    """One number: as the paper prints it ("<30" is a bound; None where it prints none), and as it
    comes out under each convention."""

    name: str
    printed: str | None
    values: dict[Convention, float]

    @property
    def reproduced_by(self) -> tuple[Convention, ...]:
        """The conventions whose value, rounded to the printed digits, is the printed one."""
        return tuple(c for c in CONVENTIONS if self._is_printed(self.values[c]))

    def _is_printed(self, value: float) -> bool:
        if self.printed is None:
            return False
        if self.printed.startswith("<"):
            return value < float(self.printed[1:])
        return f"{value:.{self.decimals}f}" == self.printed

    @property
    def decimals(self) -> int:
        """Printed decimals; 2 where nothing is printed."""
        return 2 if self.printed is None else len(self.printed.partition(".")[2])


@dataclass(frozen=True)
class Table:
    """Cells of one kind; `about`: what is counted. With are_readings a printed number has several
    cells, of which one at best can be right."""

    name: str
    about: str
    cells: tuple[Cell, ...]
    are_readings: bool = False

    @property
    def reproduced_by(self) -> tuple[Convention, ...]:
        """The conventions that reproduce every printed cell of it, none where none is printed."""
        printed = [cell.reproduced_by for cell in self.cells if cell.printed is not None]
        return tuple(c for c in CONVENTIONS if printed and all(c in by for by in printed))


def tables() -> tuple[Table, ...]:
    """All of them, in the paper's order."""
    return (
        _token_dropping(),
        _kept_tokens(),
        _symmetric_patches(),
        _asymmetric_patches(),
        _figure(keys_are_compressed=False),
        _figure(keys_are_compressed=True),
        _largest_speed_up(),
        _budgets(),
        _dino(),
        _speed_ups(),
        _shares(),
        _steps(),
    )


def _cell(name: str, printed: str | None, values: Iterable[float]) -> Cell:
    """values: in the order of CONVENTIONS."""
    return Cell(name, printed, dict(zip(CONVENTIONS, values, strict=True)))


def _same(name: str, printed: str | None, value: float) -> Cell:
    return _cell(name, printed, [value] * len(CONVENTIONS))


def _moco(name: str, printed: str | None, query: Compression, key: Compression) -> Cell:
    """Of 240 px crops."""
    size = paper.PATCH_SIZE
    lengths = query.keep(size), key.keep(size)
    return _cell(name, printed, (moco_cost(*lengths, c) for c in CONVENTIONS))


def _token_dropping() -> Table:
    cells = (
        _cell(
            f"L_q {l_q}, L_k {l_k}",
            printed,
            (moco_cost(l_q - 1, l_k - 1, c) for c in CONVENTIONS),
        )
        for l_q, l_k, printed in paper.TOKEN_DROPPING
    )
    about = "Units an image, MoCo-v3 at 224 px. The printed lengths count CLS."
    return Table("Token dropping", about, tuple(cells))


def _kept_tokens() -> Table:
    cells = (
        _same(f"drop {drop:g}", f"{length}", Compression(16, drop).keep(paper.BASE_SIZE) + 1)
        for length, drop in paper.DROPPED_LENGTHS.items()
    )
    about = "What the drops that are meant keep of 196 patches, rounded down, and CLS."
    return Table("Lengths of the token dropping table", about, tuple(cells))


def _symmetric_patches() -> Table:
    cells = []
    for p, length, printed in paper.SYMMETRIC_PATCHES:
        compression = Compression(p, 0.0)
        name = f"p {p}, L {compression.keep(paper.PATCH_SIZE)}"
        if name != f"p {p}, L {length}":
            name += f" (printed {length})"
        cells.append(_moco(name, printed, compression, compression))
    about = "Units an image, MoCo-v3 at 240 px. The printed lengths leave CLS out."
    return Table("Patches of the same side", about, tuple(cells))


def _asymmetric_patches() -> Table:
    cells = (
        _moco(f"p_q {p_q}, p_k {p_k}", printed, Compression(p_q, 0.0), Compression(p_k, 0.0))
        for p_q, p_k, printed in paper.ASYMMETRIC_PATCHES
    )
    about = "Units an image, MoCo-v3 at 240 px."
    return Table("Patches of two sides", about, tuple(cells))


def _figure(*, keys_are_compressed: bool) -> Table:
    cells = (
        _moco(
            f"p {p}, drop {drop:g}",
            None,
            Compression(p, drop),
            Compression(p, 0.0) if keys_are_compressed else UNCOMPRESSED,
        )
        for p in paper.FIGURE_SIDES
        for drop in paper.FIGURE_DROPS
    )
    if keys_are_compressed:
        name = "The same cells as they are trained"
        about = "Units an image, MoCo-v3 at 240 px: keys have the query's patches, none dropped."
    else:
        name = "The cost figure"
        about = "Units an image, MoCo-v3 at 240 px with uncompressed keys. No numbers are printed."
    return Table(name, about, tuple(cells))


def _largest_speed_up() -> Table:
    plain, last = Compression(16, 0.0), Compression(paper.FIGURE_SIDES[-1], paper.FIGURE_DROPS[-1])
    size = paper.PATCH_SIZE

    def ratio(key: Compression, convention: Convention) -> float:
        dear = moco_cost(plain.keep(size), plain.keep(size), convention)
        return dear / moco_cost(last.keep(size), key.keep(size), convention)

    rules = (("keys uncompressed", paper.FIGURE_SPEED_UP, plain), ("as trained", None, last))
    cells = (
        _cell(
            f"{last}, {name}",
            printed,
            (ratio(Compression(key.p, 0.0), c) for c in CONVENTIONS),
        )
        for name, printed, key in rules
    )
    return Table(
        "The figure's largest speed-up", "Uncompressed over most compressed.", tuple(cells)
    )


def _budgets() -> Table:
    cells = (
        _cell(
            f"{_named(reading)}: {reading.epochs} epochs of {reading.images:,} images",
            reading.printed,
            (_product(reading, c) / 1e6 for c in CONVENTIONS),
        )
        for reading in paper.BUDGETS
    )
    about = (
        "Millions of units, uncompressed at 224 px: epochs times images times the formula. Each "
        "printed number with the readings that come near."
    )
    return Table("Budgets", about, tuple(cells), are_readings=True)


def _named(reading: paper.BudgetReading) -> str:
    extra = []
    if reading.times > 1:
        extra.append(f"{reading.times} times the formula")
    if reading.n_local:
        extra.append(f"{reading.n_local} small crops")
    if reading.n_global > 1:
        extra.append("both large crops query and key")
    return ", ".join([reading.run, *extra])


def _product(reading: paper.BudgetReading, convention: Convention) -> float:
    cost = _plain_cost(reading.algo, reading.n_local, reading.n_global, convention)
    return reading.epochs * reading.images * reading.times * cost


def _plain_cost(algo: str, n_local: int, n_global: int, convention: Convention) -> float:
    mode = "official" if n_global > 1 else "paper"
    method = METHODS[algo].of({"size": paper.BASE_SIZE, "mode": mode, "n_local": n_local})
    return method.sample_cost(UNCOMPRESSED, convention)


def _dino() -> Table:
    cells = [
        _cell(
            f"{n_local} small crops, {n_global} large one{'s' * (n_global > 1)} query",
            None,
            (_plain_cost("dino", n_local, n_global, c) for c in CONVENTIONS),
        )
        for n_global in (1, 2)
        for n_local in (6, 8, 10)
    ]
    small = {c: 3 * 6 * c.share(UNCOMPRESSED.keep(96)) for c in CONVENTIONS}
    whole = {c: _plain_cost("dino", 6, 1, c) for c in CONVENTIONS}
    cells.append(Cell("6 small crops alone, which are never compressed", None, small))
    most = {c: whole[c] / small[c] for c in CONVENTIONS}
    cells.append(Cell("so that no compression makes an image cheaper than, times", None, most))
    return Table("DINO", "Units an image, uncompressed at 224 px.", tuple(cells))


def _speed_ups() -> Table:
    cells = (
        _same(f"{run}: {plain}M / {accelerated}M", printed, plain / accelerated)
        for run, plain, accelerated, printed in paper.SPEED_UPS
    )
    return Table("Claimed speed-ups", "Ratios of budgets.", tuple(cells))


def _shares() -> Table:
    cells = (
        _same(f"{run}: {accelerated}M of {plain}M", printed, 100 * accelerated / plain)
        for run, plain, accelerated, printed in paper.SHARES
    )
    return Table("Claimed shares", "Of the uncompressed budget, in per cent.", tuple(cells))


def _steps() -> Table:
    size, budget, batch = paper.BASE_SIZE, paper.STEPS_BUDGET, paper.STEPS_BATCH
    runs = (
        ("uncompressed, 224 px", UNCOMPRESSED, size),
        ("L_q 50, L_k 197, 224 px", Compression(16, 0.75), size),
        ("p 30, 240 px", Compression(30, 0.0), paper.PATCH_SIZE),
    )
    cells = (
        _cell(
            name,
            None,
            (
                steps_bought(budget, [(1.0, batch * MoCoMethod(side).sample_cost(compression, c))])[
                    0
                ]
                for c in CONVENTIONS
            ),
        )
        for name, compression, side in runs
    )
    about = f"What {budget / 1e6:g}M units buy at batch {batch}. The paper does not print steps."
    return Table("Steps", about, tuple(cells))
