"""Batches that are made by a thread while the model works on the last ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from threading import Condition, Thread
from typing import Generic, TypeVar

from hybridmpi.field_types import Count, checks_arguments

T = TypeVar("T")
PATIENCE = 5.0
"""Seconds that `close` waits for an element being made; a thread stuck in a read ends with the process."""


class Prefetch(Generic[T]):
    """An iterator over `iterable` that keeps up to `depth` elements ready. Local; a context manager.

    One daemon thread runs the iterable, so it must make no MPI calls, and nothing else may use it meanwhile. An
    exception in it is raised here, after the elements made before it. `close` may be called at any time and again; a
    closed one is at its end. Raises UsageError for a depth below 1.
    """

    @checks_arguments
    def __init__(self, iterable: Iterable[T], depth: Count = 2) -> None:
        self._depth = depth
        self._ready: deque[T] = deque()
        self._changed = Condition()
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, args=(iterable,), name="hybridmpi prefetch", daemon=True)
        self._thread.start()

    def _run(self, iterable: Iterable[T]) -> None:
        try:
            iterator = iter(iterable)
            try:
                for element in iterator:
                    if not self._hand_over(element):
                        break
            finally:
                if hasattr(iterator, "close"):  # a generator's own clean-up, in the thread that ran it
                    iterator.close()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer gets it
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _hand_over(self, element: T) -> bool:
        """Append `element` once there is room; return False when it is no longer wanted."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) < self._depth or self._closed)
            if not self._closed:
                self._ready.append(element)
                self._changed.notify_all()
            return not self._closed

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            if self._ready:
                self._changed.notify_all()
                return self._ready.popleft()
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Stop the thread and drop what it has made; an error that was not yet raised is dropped too."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._error = None
            self._changed.notify_all()
        self._thread.join(PATIENCE)

    def __enter__(self) -> Prefetch[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
