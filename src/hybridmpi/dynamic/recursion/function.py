"""`recursive`: a function of a node that calls itself, and runs for many at once."""

from __future__ import annotations

import functools
import gc
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hybridmpi import inputs
from hybridmpi.autograd import Parameter, Tensor
from hybridmpi.autograd.tracing import body as at_work
from hybridmpi.dynamic.recursion.expansion import Context, Expansion
from hybridmpi.dynamic.recursion.frames import Frame, RootRow
from hybridmpi.dynamic.recursion.level_pass import LevelPass
from hybridmpi.dynamic.recursion.lowering import as_graphs, put_out, result_name
from hybridmpi.dynamic.recursion.outputs import Pushed
from hybridmpi.dynamic.recursion.queue_pass import QueuePass
from hybridmpi.dynamic.recursion.serial import SerialRun
from hybridmpi.dynamic.recursion.types import RootRows
from hybridmpi.dynamic.report import Report, Times
from hybridmpi.errors import UsageError
from hybridmpi.graphs import Graphs


def push(**what: Any) -> None:
    """Give something of this call to the outside: tensors by name, which become rows of the outputs of the pass, and
    numbers that go with them, such as labels. In a recursive function only. Local."""
    body = at_work.get()
    if body is None:
        raise UsageError("push(...) outside of a recursive function: there is no call that it could belong to")
    if "results" in what or "roots" in what:
        raise UsageError("push(results=..., roots=...): these names have another meaning there: take others")
    rows = {name: value for name, value in what.items() if isinstance(value, Tensor)}
    body.push(rows, {name: value for name, value in what.items() if name not in rows})


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without collections of garbage: the calls of a pass are many objects, all in use until it ends, and to look
    through them again and again takes a third of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Passes:
    """What a recursive function of an object keeps from one pass to the next."""

    def __init__(self) -> None:
        self.context = Context()
        self.levels = LevelPass(self.context)
        self.queues = QueuePass(self.context)


class Kept(dict[Callable[..., Any], Passes]):
    """The `Passes` of an object's recursive functions. A copy of the object begins anew."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, ()


class Bound:
    """A recursive function of an object.

    In a recursive function, a call `f(node, ...)` returns at once what stands for its results. Elsewhere it runs for
    one root; `over` for many.
    """

    __slots__ = ("function", "key", "object")

    def __init__(self, function: Callable[..., Any], of: Any) -> None:
        self.function, self.object = function, of
        self.key = (function, of)

    @property
    def name(self) -> str:
        """The function's name, for people."""
        return self.function.__qualname__.rsplit("<locals>.", 1)[-1]

    def run(self, arguments: Sequence[Any]) -> Any:
        """Run the body. Local."""
        return self.function(*arguments) if self.object is None else self.function(self.object, *arguments)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Return the results of a call. Local."""
        if named:
            arguments = self._in_order(arguments, named)
        body = at_work.get()
        if body is not None:
            return body.call(self, arguments)
        return self.over(*[argument if isinstance(argument, Tensor) else [argument] for argument in arguments]).results

    def over(self, *arguments: Any, policy: str = "batched") -> Pushed:
        """Run for many roots at once; return what they return and push. Local.

        arguments: as of a call, but each for all roots: a list with an item for each root, or a tensor [roots, width]
        with a row for each. In place of the lists, what `lower` made of them, with the tensors after it.
        policy: "batched": all calls of the same kind that can run together do; "serial": one call after the other, the
        oracle. The results do not depend on it, to rounding.
        """
        if policy not in ("batched", "serial"):
            raise UsageError(f"{self.name}.over: policy {policy!r}: expected 'batched' or 'serial'")
        if arguments and isinstance(arguments[0], Graphs):
            if policy == "serial":
                raise UsageError(f"{self.name}.over: policy 'serial' with lowered calls: give it the nodes")
            return self._run_lowered(arguments[0], self._given(arguments[1:]))
        arguments = self._given(arguments)
        roots = self._roots(arguments)
        if policy == "serial":
            return self._run_serially(roots, arguments)
        given = [argument for argument in arguments if isinstance(argument, Tensor)]
        with _uncollected():
            expansion = self._expanded(roots, arguments)
            if expansion.parked:
                outputs = self._outputs(*self._passes().queues.run(expansion, given))
                expansion.close()
                return outputs
            graphs = as_graphs(expansion, roots)
            expansion.close()
        return self._run_lowered(graphs, given)

    def lower(self, *arguments: Any) -> Graphs:
        """Return what calls for many roots do, as graphs that `over` runs, a graph for each root. Local.

        So the bodies run once, not in every epoch: lower a data set, `select` batches of it. Numbers that were pushed
        are data of the graphs. arguments: see `over`; of tensors only the widths count. Raises UsageError for functions
        that wait for values, whose structure is not known before.
        """
        arguments = self._given(arguments)
        roots = self._roots(arguments)
        with _uncollected():
            expansion = self._expanded(roots, arguments)
            if expansion.parked:
                frame = expansion.parked[0][0]
                raise UsageError(
                    f"{self.name}.lower: the call {frame.path()} waits for computed values: what follows is only known "
                    f"while it runs; use {self.name}.over"
                )
            graphs = as_graphs(expansion, roots)
            expansion.close()
        return graphs

    def report(self, work: Callable[[], Any]) -> Report:
        """Return what passes of this function within `work()` did: rounds, rows in each, time by operation. Local."""
        levels = self._passes().levels
        levels.times = Times()
        started = time.perf_counter()
        try:
            work()
            return Report(levels.times, time.perf_counter() - started, levels.lists())
        finally:
            levels.times = None

    def _in_order(self, arguments: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments in the function's order."""
        own = () if self.object is None else (self.object,)
        bound = inspect.signature(self.function).bind(*own, *arguments, **named)
        if bound.kwargs:
            raise UsageError(
                f"{self.name}({', '.join(bound.kwargs)}=...): arguments by name alone, or after one that is left out: "
                "a recursive function takes its arguments by place"
            )
        return bound.args[len(own) :]

    def _passes(self) -> Passes:
        holder = self.function if self.object is None else self.object
        if type(holder).__hash__ is None or not hasattr(holder, "__dict__"):
            raise UsageError(
                f"{self.name}: a {type(holder).__name__} cannot be hashed, or has no attributes (__slots__): recursive "
                "functions are methods of modules, or of other ordinary objects, or stand by themselves"
            )
        kept = vars(holder).setdefault("_passes_of_recursion", Kept())
        if self.function not in kept:
            kept[self.function] = Passes()
        return kept[self.function]

    def _given(self, arguments: Sequence[Any]) -> list[Any]:
        """Return the arguments for all roots, arrays as what they mean: of whole numbers [roots] as a list, of rows
        [roots, width] as a tensor."""
        given = []
        for argument in arguments:
            if isinstance(argument, range):
                argument = list(argument)
            elif not isinstance(argument, Tensor) and hasattr(argument, "dtype"):
                array = inputs.plain_array(argument, f"{self.name}.over")
                if array.ndim == 1 and array.dtype.kind in "iuO":
                    argument = array.tolist()
                elif array.ndim == 2 and array.dtype.kind == "f":
                    argument = Tensor(array)
            given.append(argument)
        return given

    def _roots(self, arguments: Sequence[Any]) -> int:
        lengths = []
        for argument in arguments:
            if not isinstance(argument, (Tensor, list, tuple)):
                raise UsageError(
                    f"{self.name}.over({type(argument).__name__}): expected lists, with an item for each root, and "
                    "tensors [roots, width]"
                )
            if isinstance(argument, Tensor) and len(argument.shape) != 2:
                raise UsageError(f"{self.name}.over: a tensor {argument.shape}: expected [roots, width]")
            lengths.append(len(argument))
        if not lengths or len(set(lengths)) != 1:
            raise UsageError(f"{self.name}.over: arguments for {lengths} roots: expected as many of each")
        return lengths[0]

    def _expanded(self, roots: int, arguments: Sequence[Any]) -> Expansion:
        """Return the expansion of calls for all roots, as far as it goes without values."""
        expansion = Expansion(self._passes().context)
        for root in range(roots):
            known = len(expansion.vertices.all)
            frame = self._begin(expansion, arguments, root)
            if expansion.begun_anew and not expansion.parked:
                # Now it is known what the functions return: once more, as it will be done from now on.
                del expansion.vertices.all[known:]
                frame = self._begin(expansion, arguments, root)
            expansion.roots.append(frame)
            if not expansion.parked:
                put_out(expansion, frame)
                expansion.forget()
        return expansion

    def _begin(self, expansion: Expansion, arguments: Sequence[Any], root: int) -> Frame:
        """Run a root and what it calls, as far as it goes; return its call."""
        own, tensors = [], 0
        for argument in arguments:
            if isinstance(argument, Tensor):
                own.append(RootRow(RootRows(tensors), argument.shape[1]))
                tensors += 1
            else:
                own.append(self._root(argument[root]))
        frame = Frame(expansion, self, own, [], None, root)
        expansion.begun_anew = False
        expansion.begin(frame)
        expansion.run()
        return frame

    def _root(self, argument: Any) -> Any:
        """Return an argument of a root. Raises UsageError if it has values in it that would be taken for constants."""
        for item in argument if type(argument) in (tuple, list) else (argument,):
            if isinstance(item, Tensor) and not isinstance(item, Parameter):
                raise UsageError(
                    f"{self.name}.over: {item!r} in a list or tuple: give each tensor as an argument of its own, "
                    "[roots, width]"
                )
        return argument

    def _run_lowered(self, graphs: Graphs, given: Sequence[Any]) -> Pushed:
        for tensor in given:
            if not isinstance(tensor, Tensor) or len(tensor.shape) != 2 or len(tensor) != len(graphs):
                raise UsageError(f"{self.name}.over: {tensor!r}: expected [{len(graphs)}, width], a row a root")
        passes = self._passes()
        tensors, data, roots = passes.levels.run(graphs, given)
        return self._outputs(tensors, data, roots)

    def _outputs(self, tensors: dict[str, Tensor], data: dict[str, Any], roots: dict[str, Any]) -> Pushed:
        signature = self._passes().context.signatures.get(self.key)
        if signature is None:
            raise UsageError(f"{self.name}.over no roots, before it ran for any: what it returns is not known yet")
        results = []
        for number in range(len(signature.widths)):
            results.append(tensors.pop(result_name(number)))
            roots.pop(result_name(number), None)
        return Pushed(tensors, data, roots, signature.arranged(results))

    def _run_serially(self, roots: int, arguments: Sequence[Any]) -> Pushed:
        run = SerialRun()
        results = []
        for root in range(roots):
            own = [a[root : root + 1] if isinstance(a, Tensor) else a[root] for a in arguments]
            results.append(run.call(self, own, f"{self.name}[{root}]", root))
        return run.outputs(results)


class Recursive:
    """What `recursive` makes of a function: a method, or a function that stands by itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else Bound(self._function, instance)

    def __getattr__(self, name: str) -> Any:
        # What stands by itself has the methods of `Bound`.
        if name in ("over", "lower", "report", "key", "name", "run"):
            return getattr(Bound(self._function, None), name)
        raise AttributeError(f"recursive function '{self._function.__qualname__}' has no attribute '{name}'")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """See `Bound.__call__`."""
        return Bound(self._function, None)(*arguments, **named)


def recursive(function: Callable[..., Any]) -> Any:
    """Let a function call itself, and others so marked, for one node of some data after the other, and run it for many
    at once: all calls of one kind that can, as one batch. Local.

    The function takes a node (anything) and, if it likes, tensors, numbers and other data, computes with ordinary
    layers and operations on tensors [1, width], and returns a tensor, a tuple of tensors or nothing, the same in every
    call. A call of it returns at once, with tensors that have no values yet. What is decided by the node needs nothing
    more: the structure is known before anything is computed. To decide by computed values, write `async def` and
    `await tensor`, which gives its numbers (EuroSys 2018, arXiv 1809.00832; Cavs, arXiv 1712.04048). Rows of tables are
    looked up by number, `self.words(node.word)`; `push` gives rows of any call to the outside.

    `f.over(nodes, ...)` runs it for many roots and returns what they return (`results`) and push, `f.lower(nodes)`
    prepares a data set once.
    """
    return Recursive(function)
