"""Impressions of the Open Bandit Dataset (Saito et al. 2020, arXiv 2008.07146): which fashion items were clicked.

The `obp` wheel carries six files of 10,000 impressions, and the whole data set has the same folders: POLICY/CAMPAIGN/
with CAMPAIGN.csv (a line for each impression) and item_context.csv (a line for each item). obp is never imported.
"""

from __future__ import annotations

import csv
import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hybridmpi.data.clicks import ClickBatch
from hybridmpi.data.text_file import status_of
from hybridmpi.errors import DataError

PACKAGE = "obp"
INSIDE = Path("dataset", "obd")
ITEMS = "item_context.csv"
IMPRESSION = ("timestamp", "item_id", "position", "click", *(f"user_feature_{i}" for i in range(4)))
ITEM = ("item_id", *(f"item_feature_{i}" for i in range(4)))
AFFINITY = "user-item_affinity_"
ZEROS = ("0.0", "0")
MOST_CLICKS = 1_000_000  # of one item by one user
TABLES = ("policy", "campaign", "item", "position", *IMPRESSION[4:], *ITEM[2:], "hour")
FEATURES = 3  # the item's number, and how often the user clicked this item and all items before, as log(1 + n)


@dataclass(frozen=True)
class OpenBandit:
    """Impressions in the order of time, the last `held_out` of which are only evaluated on. Local.

    `tables`: rows by name, a row for each value there is, frequent ones first; `numbers` float32 [N, 3]; `ids` int64
    and `starts` int64 [N + 1] of each table: one id for each impression, but for "affinity", the items that the user
    clicked before, as often as that. Training reads the others in a new order in every epoch, a function of `seed`.
    """

    tables: dict[str, int]
    numbers: np.ndarray
    ids: tuple[np.ndarray, ...]
    starts: tuple[np.ndarray, ...]
    labels: np.ndarray
    held_out: int
    seed: int
    features: int = FEATURES
    _orders: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return (
            f"Open Bandit: {len(self.labels):,} impressions, {int(self.labels.sum()):,} clicked, the last "
            f"{self.held_out:,} held out; {len(self.tables)} tables, {sum(self.tables.values()):,} rows"
        )

    def training(self, first: int, count: int) -> ClickBatch:
        """Return examples [first, first + count) of the stream of epochs."""
        total = len(self.labels) - self.held_out
        numbers = np.arange(first, first + count)
        epochs = numbers // total
        places = [self._order(epoch)[numbers[epochs == epoch] % total] for epoch in np.unique(epochs)]
        return self._take(np.concatenate([np.empty(0, np.int64), *places]))

    def held_out_part(self, first: int, count: int) -> ClickBatch:
        """Return held-out examples [first, first + count)."""
        return self._take(np.arange(first, first + count) + len(self.labels) - self.held_out)

    def _order(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            for old in [e for e in self._orders if e < epoch - 1]:
                del self._orders[old]
            random = np.random.default_rng([self.seed, int(epoch)])
            self._orders[epoch] = random.permutation(len(self.labels) - self.held_out)
        return self._orders[epoch]

    def _take(self, places: np.ndarray) -> ClickBatch:
        bags = [take_bags(ids, starts, places) for ids, starts in zip(self.ids, self.starts, strict=True)]
        ids, starts = zip(*bags, strict=True)
        return ClickBatch(self.numbers[places], ids, starts, self.labels[places])


def take_bags(ids: np.ndarray, starts: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (ids int64 [m], starts int64 [n + 1]) of the bags at `places` int64 [n]. Local."""
    lengths = starts[places + 1] - starts[places]
    taken = np.concatenate([[0], np.cumsum(lengths)])
    return ids[np.repeat(starts[places] - taken[:-1], lengths) + np.arange(taken[-1])], taken


def installed() -> Path:
    """Return the folder of the files that the installed obp package carries. Local. Raises DataError without it."""
    package = importlib.util.find_spec(PACKAGE)  # looks, does not import
    for place in package.submodule_search_locations or () if package else ():
        if (folder := Path(place) / INSIDE).is_dir():
            return folder
    raise DataError(
        "data.source = open-bandit: the package that carries these files is not installed; get it without what it "
        f"depends on (pip install --no-deps {PACKAGE}), or name a folder that has them as data.source"
    )


def read(folder: Path, held_out: int, seed: int) -> OpenBandit:
    """Read all impressions below `folder`. Local.

    Raises DataError, which names the file and the line, for one that is missing, incomplete or holds something else.
    """
    status_of(folder)
    found = sorted(path.parent for path in folder.glob(f"*/*/{ITEMS}"))
    if not found:
        raise DataError(
            f"'{folder}': no {ITEMS} in any POLICY/CAMPAIGN folder below it: expected the folders of the Open Bandit "
            "Dataset, such as random/all"
        )
    lines = [line for place in found for line in _impressions(place)]
    if not 0 <= held_out < len(lines):
        raise DataError(
            f"'{folder}': {len(lines)} impressions, of which data.held_out = {held_out} are not to be trained on: "
            "expected fewer"
        )
    lines.sort(key=lambda line: line.time)
    columns = [_number(list(column)) for column in zip(*(line.values for line in lines), strict=True)]
    one_each = np.arange(len(lines) + 1, dtype=np.int64)
    clicked, rows = _number([item for line in lines for item in line.affinity])
    lengths = np.cumsum([0, *(len(line.affinity) for line in lines)])
    return OpenBandit(
        {name: rows for name, (_, rows) in zip(TABLES, columns, strict=True)} | {"affinity": max(rows, 1)},
        np.array([line.numbers for line in lines], np.float32),
        (*(ids for ids, _ in columns), clicked),
        (*[one_each] * len(columns), lengths),
        np.array([line.click for line in lines], np.float32),
        held_out,
        seed,
    )


@dataclass(frozen=True, slots=True)
class _Impression:
    time: datetime
    click: int
    values: tuple[str, ...]
    affinity: list[str]
    numbers: tuple[float, float, float]


def _impressions(folder: Path) -> list[_Impression]:
    """Return the impressions of one policy and campaign."""
    policy, campaign = folder.parts[-2:]
    items = _items(folder / ITEMS)
    path, found = folder / f"{campaign}.csv", []
    for number, (time, item, position, clicked, *user, before) in _lines(path, IMPRESSION, AFFINITY):
        try:
            of_item, *kinds = items[item]
            counts = {name: _count(count) for name, count in before.items()}
            numbers = (of_item, *np.log1p([counts.get(item, 0), sum(counts.values())]).tolist())
            at = datetime.fromisoformat(time)
            impression = _Impression(
                at.replace(tzinfo=at.tzinfo or UTC),
                {"0": 0, "1": 1}[clicked],
                (policy, campaign, f"{campaign} {item}", position, *user, *kinds, str(at.hour)),
                [f"{campaign} {name}" for name, count in counts.items() for _ in range(count)],
                numbers,
            )
        except (KeyError, ValueError) as error:
            raise DataError(
                f"{path}, line {number}: {error}: expected an item of {ITEMS}, a click of 0 or 1, counts of clicks "
                f"from 0 to {MOST_CLICKS:,} and a time such as 2019-11-24 00:03:13"
            ) from error
        found.append(impression)
    return found


def _items(path: Path) -> dict[str, tuple[float, ...]]:
    """Return the number and the kinds of every item."""
    found = {}
    for number, (item, of_item, *kinds) in _lines(path, ITEM):
        try:
            value = float(of_item)
        except ValueError:
            value = math.nan
        if not abs(value) <= float(np.finfo(np.float32).max) or item in found:
            what = f"item {item!r} a second time" if item in found else f"{ITEM[1]} is {of_item!r}"
            raise DataError(f"{path}, line {number}: {what}: expected a line for each item, with a finite number")
        found[item] = (value, *kinds)
    return found


def _count(text: str) -> int:
    """Return how often a user clicked something before. Raises ValueError for what is no such number."""
    count = float(text)
    if not 0 <= count <= MOST_CLICKS:
        raise ValueError(f"a count of {text}")
    return round(count)


def _lines(path: Path, wanted: Sequence[str], prefix: str = "") -> Iterator[tuple[int, list[Any]]]:
    """Yield (line number, values of the `wanted` columns) of a CSV file.

    With a `prefix`, the last value is {rest of the name: value} of the columns that begin so and are not zero there.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            names = next(reader, [])
            if missing := [name for name in wanted if name not in names]:
                raise DataError(
                    f"'{path}' has no column {', '.join(missing)}: expected a file of the Open Bandit Dataset"
                )
            places = [names.index(name) for name in wanted]
            more = [(place, name.removeprefix(prefix)) for place, name in enumerate(names) if name.startswith(prefix)]
            for line in reader:
                if len(line) != len(names):
                    raise DataError(f"{path}, line {reader.line_num}: {len(line)} values, expected {len(names)}")
                values = [line[place] for place in places]
                if prefix:  # nearly all are zero: told by text, which is faster than parsing
                    values.append({name: line[place] for place, name in more if line[place] not in ZEROS})
                yield reader.line_num, values
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"'{path}' cannot be read: {error}") from error


def _number(values: list[str]) -> tuple[np.ndarray, int]:
    """Return the values as ids int64 [n], numbered by falling count, and how many different ones there are."""
    distinct, place, counts = np.unique(np.array(values, str), return_inverse=True, return_counts=True)
    ids = np.empty(len(distinct), np.int64)
    ids[np.argsort(-counts, kind="stable")] = np.arange(len(distinct))
    return ids[place], len(distinct)
