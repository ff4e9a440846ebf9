"""Rows that a model says it will want: ranks of a node pull them together; or, looking one batch ahead, the next one is
read, and its rows are asked for, before the present one is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from hybridmpi.autograd import draws
from hybridmpi.errors import UsageError
from hybridmpi.nn import Module
from hybridmpi.sparse.table import Table
from hybridmpi.training.batches import iterator_of
from hybridmpi.training.results import ReadFailure
from hybridmpi.training.tables import TableExchange
from hybridmpi.wording import nearest


class Batches:
    """A rank's batches, of which one more than was taken may have been read. Local."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.iterator: Iterator[Any] = iterator_of(batches)
        self._read: list[Any] = []

    @classmethod
    def of(cls, batches: Iterable[Any], last: Batches | None) -> Batches:
        """Return the batches of an iterable: `last` again where they are the same iterator, which may have been read
        further than was trained."""
        return last if last is not None and last.iterator is batches else cls(batches)

    def take(self) -> Any:
        """Return the next batch, None at the end, a ReadFailure where it cannot be read."""
        batch = self.peek()
        self._read.clear()
        return batch

    def peek(self) -> Any:
        """Return what `take` will return next."""
        if not self._read:
            try:
                self._read.append(next(self.iterator, None))
            except (Exception, SystemExit) as error:
                self._read.append(ReadFailure(error))
        return self._read[0]


class RowsAhead:
    """Tells which rows the steps will want, for a model that can say so by `rows_wanted(batch) -> {table name: ids}`,
    called with the batch's own step in `draws`: a reader of rows or, where there is none, what pulls for the ranks of
    a node. `together`: whether the latter is there on any node. Collective over compute."""

    def __init__(self, model: Module, exchange: TableExchange, prefetch: bool) -> None:
        reader, says = exchange.reader, hasattr(model, "rows_wanted")
        self.together: bool = says and reader is None and exchange.service.open_node_pull()
        self._reader = reader if reader is not None and reader.of_use else None
        self._exchange, self._embeddings = exchange, model.named_tables()
        self.at_work = prefetch and self._reader is not None and says
        self._model = model
        numbers = {id(embedding): number for number, (_, embedding) in enumerate(self._embeddings)}
        # A table may be known by several names.
        self._numbers = {name: numbers[id(table)] for name, table in model.names_of_tables().items()}
        # What the model says is looked at once where it is of no use too: that it is wrong would show on clusters only.
        self._to_check = says
        self._next: tuple[Any, dict[int, np.ndarray]] | None = None
        self._batches: Batches | None = None
        self._counted = self._counts()

    def batches(self, batches: Iterable[Any]) -> Batches:
        """Return the batches of an iterable, which may be the iterator of the last call, read further than trained."""
        self._batches = Batches.of(batches, self._batches)
        return self._batches

    def begin(self, batch: Any, following: Any) -> None:
        """Begin the step of `batch` (None: this rank has none): read the rows it wants, and ask for those of the
        `following` one (None: nothing to ask for). What is wrong with `following` shows in its own step. Collective
        over the compute ranks of the node where they pull together, else Local."""
        if self._to_check and batch is not None:
            self._to_check = False
            self._wanted(batch, 0)
        node_pull = self._exchange.service.client.node_pull
        if node_pull is not None and self._exchange.at_owners:
            wanted: dict[int, np.ndarray] = {}
            try:
                if batch is not None:
                    wanted = self._wanted(batch, 0)
            finally:
                node_pull.pull(wanted)
        if self._reader is None or batch is None:
            return
        self._counted = self._counts()
        known, self._next = self._next, None
        if not self.at_work:
            self._reader.begin({})
            return
        wanted = known[1] if known is not None and known[0] is batch else self._wanted(batch, 0)
        # A table may have left its owners since.
        self._reader.begin({number: ids for number, ids in wanted.items() if self._lies_at_owners(number)})
        if following is not None and not isinstance(following, ReadFailure):
            try:
                self._next = following, self._wanted(following, 1)
            except Exception:
                return
            self._reader.ask(self._next[1])

    def end(self) -> None:
        """End the step's reading. Local."""
        if (node_pull := self._exchange.service.client.node_pull) is not None:
            node_pull.end()
        if self._reader is not None:
            self._reader.end()

    def take_counts(self) -> dict[str, int]:
        """Return what has happened since the step began to rows wanted of other nodes (reader.COUNTS); nothing without
        a reader."""
        before, self._counted = self._counted, self._counts()
        return {what: count - before[what] for what, count in self._counted.items()}

    def _counts(self) -> dict[str, int]:
        return dict(self._reader.counts) if self._reader is not None else {}

    def _lies_at_owners(self, number: int) -> bool:
        return isinstance(self._exchange.tables[number], Table)

    def _wanted(self, batch: Any, steps: int) -> dict[int, np.ndarray]:
        """Return the rows, sorted and distinct, that a batch wants of the tables at owners, for the step so many after
        this one."""
        with draws.peek(steps):
            wanted = self._model.rows_wanted(batch)
        if not isinstance(wanted, Mapping):
            raise UsageError(
                f"rows_wanted of {type(self._model).__name__} returned {type(wanted).__name__}: expected a dict of ids "
                "by the name of their table"
            )
        found: dict[int, list[np.ndarray]] = {}
        for name, ids in wanted.items():
            if name not in self._numbers:
                raise UsageError(
                    f"rows_wanted of {type(self._model).__name__}: no table is named {name!r}; "
                    + nearest(str(name), self._numbers)
                )
            number = self._numbers[name]
            distinct, _ = self._embeddings[number][1].distinct(ids)
            if self._lies_at_owners(number):
                found.setdefault(number, []).append(distinct)
        return {number: np.unique(np.concatenate(ids)) if len(ids) > 1 else ids[0] for number, ids in found.items()}
