"""A table schema from sums: what every client tells of its columns, put together without any row."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np

from feddrm.errors import FeddrmError, quoted, short_list
from feddrm.io.text import parse_float, parse_whole
from feddrm.tables.column_kinds import (
    DECIMAL_POINT,
    MAX_FLOAT32,
    CategoryColumn,
    NumberColumn,
    RawColumn,
    all_numbers,
    is_missing,
)
from feddrm.tables.table_schema import TableSchema

MOST_CATEGORIES = 30
MOST_DECLARED_CATEGORIES = 1000  # of a column that a person says has codes, such as diagnoses
MOST_ROWS = 2**53  # sums of more cannot be added in double precision
AMONG_NUMBERS = "and most others are numbers: correct it, or empty the cell if the value is missing"
DATES = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")  # a time may follow
WRITE_DATES = "write dates as numbers (days since a fixed day)"
NAME_IT = "name it in categories if these are codes"
DECLARE = "describe it in a schema file ('feddrm data schema' writes a first one)"


@dataclass(frozen=True)
class ColumnSums:
    """What clients tell of one column. A column of numbers has sums and no levels, one of text only levels.

    ``squares`` is the sum of squared differences from the mean. ``missing`` says whether any cell is empty,
    ``declared`` whether a person named the column in ``categories``.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    levels: frozenset[str] = frozenset()
    missing: bool = False
    declared: bool = False

    def __add__(self, other: ColumnSums) -> ColumnSums:
        count = self.count + other.count
        step = other.mean - self.mean
        return ColumnSums(
            count,
            self.mean + (step * other.count / count if count else 0.0),
            self.squares + other.squares + (step**2 * self.count * other.count / count if count else 0.0),
            self.levels | other.levels,
            self.missing or other.missing,
            self.declared or other.declared,
        )

    @property
    def most_categories(self) -> int:
        return MOST_DECLARED_CATEGORIES if self.declared else MOST_CATEGORIES

    @classmethod
    def of(
        cls,
        cells: Sequence[Any],
        counted: Sequence[bool],
        category: bool,
        where: Callable[[int], str] = "row {}".format,
    ) -> ColumnSums:
        """The sums of one client's cells. Only ``counted`` cells enter mean and squares: test samples do not.

        Numbers that no network input can be are refused. ``where`` names the cell of a row in that error.
        """
        numbers = None if category else all_numbers(cells)
        if numbers is None:
            gaps = {cell for cell in set(cells) if is_missing(cell)}
            known = {row: str(cell) for row, cell in enumerate(cells) if cell not in gaps}
            parsed = {text: parse_float(text) for text in set(known.values())}
            if category or None in parsed.values():
                if not category and (row := decimal_comma(known)) is not None:
                    raise FeddrmError(
                        f"{where(row)} is {quoted(known[row])}: {DECIMAL_POINT}, or name it in categories"
                    )
                if not category and (row := text_among_numbers(known)) is not None:
                    raise FeddrmError(
                        f"{where(row)} is {quoted(known[row])}, {AMONG_NUMBERS}, or name the column in categories"
                    )
                return cls(levels=frozenset(parsed), missing=bool(gaps), declared=category)
            for row, text in known.items():
                if not abs(parsed[text] or 0.0) <= MAX_FLOAT32:
                    raise FeddrmError(f"{where(row)} is {quoted(text)}, not a finite 32-bit number: correct it")
            numbers = np.array([parsed[known[row]] if row in known else math.nan for row in range(len(cells))])
        present = ~np.isnan(numbers)
        used = numbers[present & np.asarray(counted, dtype=bool)]
        mean = math.fsum(used.tolist()) / len(used) if len(used) else 0.0
        squares = math.fsum(((used - mean) ** 2).tolist())
        return cls(len(used), mean, squares, missing=not present.all())

    def check_no_dates(self, name: str) -> None:
        """Refuse dates that would be taken for categories: a later day would be none of them."""
        if self.levels and not self.declared and all(map(is_date, self.levels)):
            raise FeddrmError(
                f"column '{name}' has dates, such as {quoted(min(self.levels))}: {WRITE_DATES}, drop the column "
                f"(drop=['{name}']), or {NAME_IT}"
            )

    def __str__(self) -> str:
        what = (
            short_list(sorted(self.levels), MOST_CATEGORIES)
            if self.levels
            else f"{self.count} numbers, mean {self.mean:g}"
        )
        return f"{what}{', gaps' if self.missing else ''}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        return {**asdict(self), "levels": sorted(self.levels)}

    @classmethod
    def load(cls, values: Any) -> ColumnSums:
        """The inverse of :meth:`as_dict`. Values of another form are refused: another machine has sent them."""
        try:
            sums = cls(**{**values, "levels": frozenset(values["levels"])})
            texts = isinstance(values["levels"], list) and all(map(str.isprintable, sums.levels))
            numbers = type(sums.count) is int and 0 <= sums.count <= MOST_ROWS and abs(sums.mean) <= MAX_FLOAT32
            possible = numbers and 0 <= sums.squares <= sums.count * (2 * MAX_FLOAT32) ** 2
            sound = possible and texts and {type(sums.missing), type(sums.declared)} == {bool}
        except (TypeError, KeyError) as error:
            raise FeddrmError("sums of columns of an unknown form: both ends need the same feddrm") from error
        if not sound or (sums.count and (sums.levels or sums.declared)) or len(sums.levels) > sums.most_categories:
            raise FeddrmError("sums that no column can have: both ends need the same feddrm")
        return sums

    def column(self, name: str) -> RawColumn:
        """The column that these sums describe: numbers are standardised, texts become categories."""
        if not self.levels:
            # Six digits: the schema is then the same however the rows are divided among clients.
            deviation = math.sqrt(self.squares / self.count) if self.count else 0.0
            scale = float(f"{deviation:.6g}") if deviation > 1e-9 * abs(self.mean) else 1.0
            # Up to twelve where six would leave numbers many deviations from zero.
            further = math.ceil(math.log10(max(abs(self.mean) / scale, 1.0)))
            centre = float(f"{self.mean:.{min(max(6, 3 + further), 12)}g}")
            return NumberColumn(name, missing=self.missing, centre=centre, scale=scale)
        codes = distinct_codes(self.levels)
        if len(codes) == 1:
            raise FeddrmError(
                f"column '{name}' has the text {quoted(codes[0])} wherever it has one: drop it, it tells nothing "
                f"(drop=['{name}']), or {DECLARE}"
            )
        self.check_no_dates(name)
        if len(codes) > self.most_categories:
            odd, remedy = odd_text(self.levels), "" if self.declared else f"{NAME_IT}, "
            raise FeddrmError(
                f"column '{name}' has {len(codes)} different texts, such as {quoted(odd)}: {correction(odd)}, "
                f"drop the column if it names or describes a single row (drop=['{name}']), {remedy}or {DECLARE}"
            )
        return CategoryColumn(name, missing=self.missing, categories={code: code for code in codes})


def odd_text(texts: Collection[str]) -> str:
    """One of a column's texts, if possible one that is no number: it may be the only one in a column of numbers."""
    return min(texts, key=lambda text: (parse_float(text) is not None, text))


def is_date(text: str) -> bool:
    """Whether a text is a date: no kind of column reads them."""
    for form in DATES:
        try:
            datetime.strptime(text[:10], form)
        except ValueError:
            continue
        return True
    return False


def correction(text: str) -> str:
    """What to do with a text that is no category."""
    return WRITE_DATES if is_date(text) else "correct it"


def decimal_comma(cells: Mapping[int, str]) -> int | None:
    """The first row with a comma, if all cells would be numbers with a point in its place; else None."""
    if any(parse_float(cell.replace(",", ".", 1)) is None for cell in cells.values()):
        return None
    return next((row for row, cell in cells.items() if "," in cell), None)


def text_among_numbers(cells: Mapping[int, str]) -> int | None:
    """The first row with a text, if there are more than twice as many different numbers as texts; else None.

    A column of numbers would become one of categories by a single 'n.k.' or '< 5'.
    """
    texts = {cell for cell in set(cells.values()) if parse_float(cell) is None}
    if len(set(cells.values())) <= 3 * len(texts):
        return None
    return next((row for row, cell in cells.items() if cell in texts), None)


def distinct_codes(texts: Collection[str]) -> list[str]:
    """Codes of categories in the order of their numbers, whole numbers in their shortest spelling.

    1 and 1.0 are one code: where a column of whole numbers has a gap, many programs write 1.0.
    """
    spellings: dict[str | int, str] = {}
    for text in sorted(texts, key=lambda text: (len(text), text)):
        number = parse_whole(text)
        spellings.setdefault(text if number is None else number, text)
    return sorted(spellings.values(), key=lambda code: (parse_float(code) or 0.0, code))


def table_sums(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    counted: Sequence[bool],
    categories: Collection[str],
    place: Callable[[int], str] = "row {}".format,
) -> dict[str, ColumnSums]:
    """The sums of every column of one client's rows, by name. ``place`` names a row in errors."""

    def sums(name: str, cells: Sequence[Any]) -> ColumnSums:
        return ColumnSums.of(cells, counted, name in categories, lambda row: f"{place(row)}: column '{name}'")

    return {name: sums(name, cells) for name, cells in zip(columns, zip(*rows, strict=True), strict=True)}


def check_levels(
    sums: Mapping[str, ColumnSums], rows: Sequence[Sequence[Any]], subjects: Sequence[str] | None = None
) -> None:
    """Refuse sums that would tell of single rows: texts that hardly repeat are names, numbers of files or remarks.

    Where rows are of ``subjects``, a text must repeat from subject to subject: a surname repeats with every visit.
    """
    for (name, column), cells in zip(sums.items(), zip(*rows, strict=True), strict=True):
        if not column.levels:
            continue
        column.check_no_dates(name)
        whose: Sequence[Hashable] = subjects or range(len(rows))
        filled = len({(str(cell), who) for cell, who in zip(cells, whose, strict=True) if not is_missing(cell)})
        different = len(column.levels)
        if different > min(column.most_categories, filled // 2):
            remedy = f"{NAME_IT}, " if different <= filled // 2 and not column.declared else ""
            among = "rows that have one" if subjects is None else "rows that have one, each subject's counted once"
            raise FeddrmError(
                f"column '{name}' has {different} different texts in {filled} {among}: they would leave this site: "
                f"drop it if it names or describes a single row (drop: ['{name}']), {remedy}or {DECLARE}"
            )
        if odd := [text for text in column.levels if not text.isprintable()]:
            raise FeddrmError(f"column '{name}' has the text {quoted(odd[0])}: write it with printable characters")


def merge_sums(columns: Sequence[str], clients: Mapping[str, Mapping[str, ColumnSums]]) -> dict[str, ColumnSums]:
    """The sums of all clients, by column. Numbers at some and text at others are refused, with the clients' names."""
    total = {}
    for name in columns:
        parts = {client: sums[name] for client, sums in clients.items()}
        merged = sum(parts.values(), ColumnSums())
        if merged.levels and merged.count:
            numbers, texts = ([c for c, part in parts.items() if getattr(part, k)] for k in ("count", "levels"))
            raise FeddrmError(
                f"column '{name}' has numbers at {short_list(numbers)} and text such as "
                f"{quoted(odd_text(merged.levels))} at {short_list(texts)}: correct it, name the column in categories, "
                f"or {DECLARE}"
            )
        total[name] = merged
    return total


def schema_from_sums(sums: Mapping[str, ColumnSums]) -> TableSchema:
    """The schema of all clients from the sums of their columns, by name."""
    schema = TableSchema(tuple(column.column(name) for name, column in sums.items()))
    schema.check()
    return schema
