"""Reader: how a compute rank reads the rows of a step from other nodes by what it knows already.

What it knows are the rows in its cache and those that it asked for ahead, while the last step computed. Rows that are
recent enough are used; of older ones the owners are asked whether they have changed; the others are fetched: all that a
step is known to want in one message to each owner and one back. Rows of owners on this node are read from its memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hybridmpi import kernels
from hybridmpi.sparse.cache import CacheOptions, RowCache
from hybridmpi.sparse.forms import Form
from hybridmpi.sparse.requests import Part, Question
from hybridmpi.sparse.wire import ID_BYTES

if TYPE_CHECKING:
    from hybridmpi.sparse.client import Client

# Rows of so few bytes are fetched rather than asked about, and never asked for ahead: their ids take as much.
THIN_BYTES = 12

# What happens to the rows wanted of owners on other nodes: used as they are here; asked about, and found unchanged or
# changed; fetched, since nothing was known of them. `ahead`: asked for ahead. `bytes_saved`: what a plain pull of the
# rows wanted would have moved, less what was moved.
COUNTS = ("wanted", "used", "unchanged", "changed", "fetched", "ahead", "bytes_saved")


@dataclass(frozen=True)
class _Rows:
    """Rows of a table that are here: sorted ids [n], values [n, dim], the versions int32[n] they hold for."""

    ids: np.ndarray
    values: np.ndarray
    versions: np.ndarray

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (which of sorted `ids` are here, bool; where these stand)."""
        places = np.searchsorted(self.ids, ids)
        inside = np.flatnonzero(places < len(self.ids))
        equal = inside[self.ids[places[inside]] == ids[inside]]
        found = np.zeros(len(ids), bool)
        found[equal] = True
        return found, places[equal]

    def joined(self, others: _Rows) -> _Rows:
        """Return these rows and others, sorted."""
        ids = np.concatenate([self.ids, others.ids])
        order = np.argsort(ids)
        values, versions = (
            np.concatenate([self.values, others.values]),
            np.concatenate([self.versions, others.versions]),
        )
        return _Rows(ids[order], values[order], versions[order])


class RowReader:
    """Reads rows for the steps of one compute rank. Local; it waits for owners.

    It is at work, `active`, from `begin` to `end`: other pulls, of evaluations and checkpoints, see no kept rows. A row
    that is used without asking is at most `cache.staleness` steps old; this rank's own pushes do not reach its cache
    before the owner is asked.
    """

    def __init__(self, client: Client, tables: Iterable[int], cache: CacheOptions | None = None) -> None:
        """`tables`: the numbers of those that it reads, all with clocks."""
        self.client = client
        self.staleness = cache.staleness if cache is not None else 0
        self.active = False
        self.seconds = 0.0
        self.counts = dict.fromkeys(COUNTS, 0)
        self._caches: dict[int, RowCache] = {}
        if cache is not None:
            for table in tables:
                spec = client.specs[table]
                self._caches[table] = RowCache(spec.rows, spec.dim, spec.dtype, cache.rows, cache.policy)
        self._remote = [path != "shared" for path in client.paths]
        self._step: dict[int, _Rows] = {}
        self._ahead: dict[int, _Rows] = {}
        self._asked: dict[int, np.ndarray] = {}
        self._under_way: dict[int, list[Part]] = {}
        client.before_request = self.collect

    @property
    def of_use(self) -> bool:
        """Whether any owner is on another node."""
        return any(self._remote)

    # -- a step ----------------------------------------------------------------------------------------------------

    def begin(self, wanted: Mapping[int, np.ndarray]) -> None:
        """Begin a step and read the rows that it is known to want: sorted unique ids by table."""
        started = time.perf_counter()
        self.active = True
        self.collect()
        self._step = self._read(wanted)
        self._ahead = {}
        self.seconds += time.perf_counter() - started

    def pull(self, table: int, ids: np.ndarray) -> np.ndarray:
        """Return the rows `ids` (unique, sorted, checked) of a table, [n, dim]: in a step, however often they are
        pulled, the same values. Between `begin` and `end`."""
        rows = self._step.get(table)
        if rows is None or not len(rows.ids):
            rows = self._step[table] = self._read({table: ids})[table]
        if np.array_equal(rows.ids, ids):
            return rows.values
        found, places = rows.find(ids)
        if not found.all():
            rows = self._step[table] = rows.joined(self._read({table: ids[~found]})[table])
            _, places = rows.find(ids)
        return kernels.gather(rows.values, places)

    def end(self) -> None:
        """End the step's reading."""
        self.active = False
        self._step = {}

    def ask(self, wanted: Mapping[int, np.ndarray]) -> None:
        """Ask for rows of the next step (sorted unique ids by table) that this step does not read, and that are not
        kept; `begin` takes them in. Does not wait for the answers. One message to each owner: what does not fit into
        its slots is read in the step itself."""
        started = time.perf_counter()
        self.collect()
        questions: dict[int, list[Question]] = {}
        for table, ids in wanted.items():
            spec = self.client.specs[table]
            if spec.row_bytes <= THIN_BYTES:
                continue
            if (rows := self._step.get(table)) is not None:
                ids = ids[~rows.find(ids)[0]]
            if table in self._caches:
                ids = ids[self._caches[table].find(ids) < 0]
            self._asked[table] = ids
            out = np.empty((len(ids), spec.dim), spec.dtype)
            for owner, (where, local) in enumerate(self.client.split(table, ids)):
                if len(local) and self._remote[owner]:
                    places = np.arange(len(ids))[where]
                    form = self.client.form(owner, table)
                    questions.setdefault(owner, []).append(Question(table, local, places, out, form))
        with self._bytes_not_saved():
            in_turn = self.client.exchange.in_turn(questions)
            self._under_way = self.client.asking.post({owner: questions[owner] for owner in in_turn})
        self.counts["ahead"] += sum(part.last - part.first for parts in self._under_way.values() for part in parts)
        self.seconds += time.perf_counter() - started

    def collect(self) -> None:
        """Take in what was asked for ahead; waits for it."""
        if not self._under_way:
            return
        self._ahead = {}
        while self._under_way:
            owner, parts = self._under_way.popitem()
            with self._bytes_not_saved():
                version = self.client.asking.receive(owner, parts)
            for part in parts:
                question = part.question
                places = question.places[part.first : part.last]
                if question.form.largest is not None:  # what 16 bits did not carry is no business of this step
                    places = places[np.isfinite(question.out[places]).all(axis=1)]
                ids = self._asked[question.table][places]
                rows = _Rows(ids, question.out[places], np.full(len(places), version, np.int32))
                before = self._ahead.get(question.table)
                self._ahead[question.table] = rows if before is None else before.joined(rows)

    def forget(self) -> None:
        """Keep nothing of what is known: the rows are others now. Between steps."""
        self.collect()
        self._ahead = {}
        for cache in self._caches.values():
            cache.clear()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, wanted: Mapping[int, np.ndarray]) -> dict[int, _Rows]:
        """Return the rows `wanted`, none older than allowed."""
        client, version = self.client, self.client.pushed
        result: dict[int, _Rows] = {}
        questions: dict[int, list[Question]] = {}
        near: list[tuple[int, int, np.ndarray | slice, np.ndarray]] = []
        read_here: dict[int, np.ndarray] = {}
        for table, ids in wanted.items():
            spec = client.specs[table]
            rows = _Rows(ids, np.empty((len(ids), spec.dim), spec.dtype), np.full(len(ids), -1, np.int32))
            result[table] = rows
            self._look_up(table, rows)
            asked = (rows.versions < 0) | (rows.versions < version - self.staleness)
            if spec.row_bytes <= THIN_BYTES:
                rows.versions[asked] = -1
            here = read_here[table] = np.zeros(len(ids), bool)
            for owner, (where, local) in enumerate(client.split(table, ids)):
                if not len(local):
                    continue
                if not self._remote[owner]:
                    near.append((table, owner, where, local))
                    here[where] = True
                    continue
                form = client.form(owner, table)
                self.counts["bytes_saved"] += len(local) * (spec.dim * form.dtype.itemsize + ID_BYTES)
                if asked[where].any():
                    question = _question(table, rows, np.arange(len(ids))[where], local, asked, form)
                    questions.setdefault(owner, []).append(question)
            remote = len(ids) - int(here.sum())
            self.counts["wanted"] += remote
            self.counts["used"] += remote - int((asked & ~here).sum())
        if near or questions:
            client.wait_for_version()
        if questions:
            self.collect()  # an owner has one request at a time
        with self._bytes_not_saved():
            client.asking.ask(questions)
        for table, owner, where, local in near:
            client.read_near(owner, table, local, result[table].values, where)
        for owner, of_owner in questions.items():
            for question in of_owner:
                self._count(question)
                client.require_carried(owner, question)
                result[question.table].versions[question.places] = version
        for table, cache in self._caches.items():
            if table in result:
                self._keep(cache, result[table], ~read_here[table])
        return result

    def _look_up(self, table: int, rows: _Rows) -> None:
        """Fill in what is known of `rows`, with the versions that it holds for."""
        if table in self._caches:
            cache = self._caches[table]
            slots = cache.find(rows.ids)
            kept = np.flatnonzero(slots >= 0)
            cache.use(slots[kept])
            kernels.scatter(rows.values, kept, kernels.gather(cache.values, slots[kept]))
            rows.versions[kept] = cache.versions[slots[kept]]
        if table in self._ahead:
            ahead = self._ahead[table]
            found, places = ahead.find(rows.ids)
            found = np.flatnonzero(found)
            newer = ahead.versions[places] > rows.versions[found]
            kernels.scatter(rows.values, found[newer], kernels.gather(ahead.values, places[newer]))
            rows.versions[found[newer]] = ahead.versions[places[newer]]

    def _keep(self, cache: RowCache, rows: _Rows, remote: np.ndarray) -> None:
        """Bring the cache to what has been read."""
        slots = cache.find(rows.ids)
        kept = np.flatnonzero((slots >= 0) & remote)
        newer = kept[cache.versions[slots[kept]] < rows.versions[kept]]
        cache.update(slots[newer], kernels.gather(rows.values, newer), rows.versions[newer])
        new = np.flatnonzero((slots < 0) & remote)
        cache.insert(rows.ids[new], kernels.gather(rows.values, new), rows.versions[new])

    def _count(self, question: Question) -> None:
        unknown = len(question.local) - len(question.since)
        changed = int(question.changed[unknown:].sum())
        self.counts["fetched"] += unknown
        self.counts["changed"] += changed
        self.counts["unchanged"] += len(question.since) - changed

    @contextmanager
    def _bytes_not_saved(self) -> Iterator[None]:
        """What is asked and received within moves bytes, which are not saved."""
        before = self.client.asking.moved
        yield
        self.counts["bytes_saved"] -= self.client.asking.moved - before


def _question(
    table: int, rows: _Rows, places: np.ndarray, local: np.ndarray, asked: np.ndarray, form: Form
) -> Question:
    """Return the question about those of an owner's rows, `local` there and at `places` in `rows`, that are `asked`."""
    known = rows.versions[places] >= 0
    order = np.concatenate([np.flatnonzero(asked[places] & ~known), np.flatnonzero(asked[places] & known)])
    since = rows.versions[places[asked[places] & known]]
    return Question(table, local[order], places[order], rows.values, form, since)
