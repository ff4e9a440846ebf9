"""Backward of a vertex function: reverse mode over its operation list, in operations of the same kinds.

What is a source in forward is a sink here, and the other way round (Cavs, arXiv 1712.04048, section 3.4): the gradient
of what was scattered flows in from the parents (`inflow`), that of what was gathered flows out to the children
(`outflow`); pulls and pushes likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce

from hybridmpi.dynamic.nodes import CONSTANT, EDGE, VERTEX, Node, Trace

# name -> function of (trace, node, gradient of node), which returns the gradient of each input, None for none; in the
# space and shape of the node: `_fit` brings them to the input's.
Rule = Callable[[Trace, Node, Node], "Iterable[Node | None]"]


def differentiate(trace: Trace) -> list[Node]:
    """Add the nodes of backward to a trace; return them. Local."""
    first = len(trace.nodes)
    gradients: dict[Node, list[Node]] = {}
    slices: dict[Node, list[tuple[int, int, Node]]] = {}
    for node in reversed(trace.nodes[:first]):
        if not node.follows:
            continue
        if node.name in ("scatter", "push"):
            source = "inflow" if node.name == "scatter" else "pushed_gradient"
            flow = trace.add(source, (), node.attributes, space=VERTEX, shape=node.shape, follows=False)
            gradients.setdefault(node.inputs[0], []).append(flow)
            continue
        gradient = _collected(trace, node, gradients.pop(node, []), slices.pop(node, []))
        if gradient is None:
            continue
        if node.name == "slice":
            slices.setdefault(node.inputs[0], []).append((*node.attributes, gradient))
            continue
        for operand, part in zip(node.inputs, RULES[node.name](trace, node, gradient), strict=True):
            if part is None or not operand.follows:
                continue
            if operand.space == CONSTANT:
                _sum_over_rows(trace, part, operand)
            else:
                gradients.setdefault(operand, []).append(_fit(trace, part, operand))
    return trace.nodes[first:]


def _collected(trace: Trace, node: Node, parts: list[Node], slices: list[tuple[int, int, Node]]) -> Node | None:
    """Return the gradient of a node: the sum of what its users say, of whom some have used slices of it."""
    if slices:
        slices.sort(key=lambda part: part[:2])
        stops = [0, *(stop for _, stop, _ in slices)]
        flat = [trace.reshape(gradient, (gradient.width,)) for _, _, gradient in slices]
        if [first for first, _, _ in slices] == stops[:-1] and stops[-1] == node.width:
            # They tile it: side by side, where the operations that made them can write them at once.
            whole = trace.concatenate(flat, node.space)
            parts.append(trace.reshape(whole, node.shape))
        else:
            for (first, stop, _), gradient in zip(slices, flat, strict=True):
                whole = trace.add("pad", (trace.dense(gradient),), (first, stop, node.width), shape=(node.width,))
                parts.append(trace.reshape(whole, node.shape))
    return reduce(lambda a, b: trace.apply("add", a, b), parts) if parts else None


def _sum_over_rows(trace: Trace, gradient: Node, constant: Node) -> None:
    """Note that a parameter gets the sum of a gradient over its rows; and the shapes that lead back to its own."""
    shapes = [constant.shape]
    while constant.name != "parameter":
        constant = constant.inputs[0]
        shapes.append(constant.shape)
    # The number of nodes tells two uses with the same gradient apart: x + b + b.
    trace.add("parameter_sum", (trace.dense(gradient),), (*constant.attributes, tuple(shapes), len(trace.nodes)))


def _fit(trace: Trace, gradient: Node, operand: Node) -> Node:
    """Return a gradient summed over what the operand was repeated for."""
    if gradient.space == operand.space:
        return gradient
    if gradient.space == EDGE:
        gradient = trace.total(gradient)
    if gradient.space != operand.space:
        computed = trace.computed(gradient, VERTEX)
        gradient = trace.add("collect", (computed,), (operand.space,), space=operand.space)
    return gradient


def _add(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return g, g


def _subtract(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return g, trace.apply("negative", g)


def _multiply(trace: Trace, node: Node, g: Node) -> Iterable[Node | None]:
    a, b = node.inputs
    return (trace.apply("multiply", g, b) if a.follows else None, trace.apply("multiply", g, a) if b.follows else None)


def _divide(trace: Trace, node: Node, g: Node) -> Iterable[Node | None]:
    a, b = node.inputs
    scaled = trace.apply("divide", g, b)
    return scaled, trace.apply("negative", trace.apply("multiply", scaled, node)) if b.follows else None


def _negative(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return (trace.apply("negative", g),)


def _exp(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return (trace.apply("multiply", g, node),)


def _log(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return (trace.apply("divide", g, node.inputs[0]),)


def _tanh(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    slope = trace.apply("subtract", trace.number(1.0), trace.apply("multiply", node, node))
    return (trace.apply("multiply", g, slope),)


def _sigmoid(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    slope = trace.apply("multiply", node, trace.apply("subtract", trace.number(1.0), node))
    return (trace.apply("multiply", g, slope),)


def _relu(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return (trace.apply("multiply", g, trace.apply("positive", node)),)


def _power(trace: Trace, node: Node, g: Node) -> Iterable[Node | None]:
    x, exponent = node.inputs
    value = exponent.attributes[0]
    slope = trace.apply("multiply", trace.apply("power", x, trace.number(value - 1)), exponent)
    return trace.apply("multiply", g, slope), None


def _copy(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return (g,)


def _product(trace: Trace, node: Node, g: Node) -> Iterable[Node | None]:
    x, matrix = node.inputs
    (turned,) = node.attributes
    if matrix.follows:
        a, b = (trace.dense(g), x) if turned else (x, trace.dense(g))
        trace.add("parameter_product", (a, b), matrix.attributes, space=g.space, shape=matrix.shape)
    return trace.product(g, matrix, not turned) if x.follows else None, None


def _concatenate(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    first = 0
    for part in node.inputs:
        yield trace.slice(g, first, first + part.width)
        first += part.width


def _reshape(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return (trace.reshape(g, node.inputs[0].shape),)


def _sum(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return (trace.spread(g, node.inputs[0].shape),)


def _broadcast(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    x = node.inputs[0]
    axes = tuple(axis for axis, (a, b) in enumerate(zip(x.shape, node.shape, strict=True)) if a != b)
    return (trace.sum(g, axes),)


def _expand(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return (g,)  # `_fit` sums


def _total(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    return (trace.expand(g, EDGE),)


def _gather(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    trace.add("outflow", (trace.computed(g, g.space),), node.attributes)
    return ()


def _pull(trace: Trace, node: Node, g: Node) -> Iterable[Node]:
    trace.add("pull_gradient", (trace.computed(g, g.space),), node.attributes)
    return ()


RULES: dict[str, Rule] = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "negative": _negative,
    "exp": _exp,
    "log": _log,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "relu": _relu,
    "power": _power,
    "copy": _copy,
    "product": _product,
    "concatenate": _concatenate,
    "reshape": _reshape,
    "sum": _sum,
    "broadcast": _broadcast,
    "expand": _expand,
    "total": _total,
    "gather": _gather,
    "child": _gather,
    "pull": _pull,
}
