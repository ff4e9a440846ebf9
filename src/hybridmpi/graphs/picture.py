"""A picture of one instance graph: a row for each round, vertices without children at the bottom. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridmpi.errors import UsageError
from hybridmpi.field_types import Natural, checks_arguments
from hybridmpi.graphs.graphs import Graphs
from hybridmpi.pictures import require_picture, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:cyan", "tab:olive", "tab:pink", "tab:brown")
SHARED = "tab:red"
"""The colour of edges to a child of several parents, and of the second edge to one child."""
BENDS = (0.0, 0.6, -0.6, 1.2, -1.2, 1.8, -1.8, 2.4, -2.4, 3.2, -3.2, 4.0, -4.0)
"""What is tried, in units of the distance between neighbours; half of it is how far the middle of an edge moves."""
CLEAR = 0.35
"""The distance that an edge should keep from the vertices it passes."""
_INCHES_A_VERTEX, _INCHES_A_ROUND = 0.42, 0.6
_SMALLEST, _LARGEST = (5.0, 2.5), (32.0, 22.0)  # inches: width, height
_LABELLED_ROUNDS = 30


@checks_arguments
def plot(
    graphs: Graphs,
    number: Natural,
    path_or_axes: str | Path | Axes,
    names: Sequence[str] | Mapping[int, str] | None = None,
) -> None:
    """Draw graph `number` into a file (.png, .svg, .pdf) or into matplotlib's axes. Local.

    A row for each round, with its number of vertices; types by colour; edges to a child that has several in red.
    `names`: the words of data "word", written at the vertices that have one; data "label" is written into vertices
    where there is room. Raises UsageError for a number that is no graph and a file that cannot be written.
    """
    if number >= len(graphs):
        raise UsageError(f"plot: graph {number} is none of {len(graphs)}: expected 0 to {len(graphs) - 1}")
    graph = graphs.select([number])
    x = places(graph)
    title = _title(graph, number)
    if not isinstance(path_or_axes, (str, Path)):
        _draw(path_or_axes, graph, x, names, title)
        return
    file = Path(path_or_axes)
    require_picture(file, "plot")
    from matplotlib.figure import Figure

    span, rounds = x.max(initial=0) - x.min(initial=0) + 1, int(graph.heights.max(initial=0)) + 1
    wanted = (2.5 + _INCHES_A_VERTEX * span, 1.5 + _INCHES_A_ROUND * rounds)
    figure = Figure(figsize=tuple(np.clip(wanted, _SMALLEST, _LARGEST)), layout="constrained")
    _draw(figure.add_subplot(), graph, x, names, title)
    save(figure, file, "plot", dpi=120)


def places(graph: Graphs) -> np.ndarray:
    """Return where each vertex stands in its row, float64 [V], at least 1 apart from the others of its round. Local.

    Vertices without children stand in the order in which a walk from the roots, by slots, meets them; each other one
    stands above the middle of its children, as far as its row has room.
    """
    x = np.zeros(graph.vertices)
    met = 0
    seen = np.zeros(graph.vertices, bool)
    stack = graph.roots()[::-1].tolist()
    while stack:
        vertex = stack.pop()
        if seen[vertex]:
            continue
        seen[vertex] = True
        below = graph.children[graph.child_starts[vertex] : graph.child_starts[vertex + 1]]
        if not len(below):
            x[vertex] = met
            met += 1
        stack += below[::-1].tolist()
    for height in range(1, int(graph.heights.max(initial=0)) + 1):
        row = np.flatnonzero(graph.heights == height)
        wanted = [x[graph.children[graph.child_starts[v] : graph.child_starts[v + 1]]].mean() for v in row]
        order = np.argsort(wanted, kind="stable")
        x[row[order]] = _apart(np.array(wanted)[order])
    return x


def _apart(wanted: np.ndarray) -> np.ndarray:
    """Return the places nearest to `wanted`, ascending, by the sum of squares, that are at least 1 apart.

    Without the distances it is an isotonic regression: neighbours in the wrong order are given their mean.
    """
    blocks: list[tuple[float, int]] = []  # mean, count
    for place, value in enumerate(wanted):
        mean, count = float(value) - place, 1
        while blocks and blocks[-1][0] > mean:
            other, more = blocks.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        blocks.append((mean, count))
    return np.repeat([mean for mean, _ in blocks], [count for _, count in blocks]) + np.arange(len(wanted))


def _title(graph: Graphs, number: int) -> str:
    parents = np.repeat(np.arange(graph.vertices), np.diff(graph.child_starts))
    pairs = np.unique(np.stack([graph.children, parents]), axis=1)
    shared = int((np.bincount(pairs[0]) > 1).sum())
    rounds = int(graph.heights.max(initial=-1)) + 1
    text = f"graph {number}: {_count(graph.vertices, 'vertex', 'vertices')}, {_count(rounds, 'round', 'rounds')}"
    return text + (f", {shared} with several parents" if shared else "")


def _count(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"


def _draw(axes: Axes, graph: Graphs, x: np.ndarray, names: Any, title: str) -> None:
    rounds = int(graph.heights.max(initial=-1)) + 1
    axes.set_title(title, fontsize="medium")
    axes.set_xlim(x.min(initial=0) - 0.8, x.max(initial=0) + 0.8)
    axes.set_ylim(-0.8, max(rounds, 1) - 0.4)
    axes.spines[:].set_visible(False)
    axes.set_xticks([])
    shown = range(0, rounds, -(-rounds // _LABELLED_ROUNDS) or 1)
    in_round = np.bincount(graph.heights, minlength=rounds)
    axes.set_yticks(shown, [f"round {r}: {_count(in_round[r], 'vertex', 'vertices')}" for r in shown])
    axes.tick_params(axis="y", length=0, labelsize="small", labelcolor="gray")
    axes.grid(axis="y", color="0.93", zorder=0)
    axes.set_axisbelow(True)
    room = _points_a_unit(axes, x, rounds)
    _draw_edges(axes, graph, x)
    size = min(14.0, 0.75 * room)
    for kind in np.unique(graph.types):
        chosen = graph.types == kind
        colour, name = COLOURS[kind % len(COLOURS)], graph.type_names[kind]
        axes.scatter(x[chosen], graph.heights[chosen], size**2, colour, label=name, edgecolor="white", lw=0.5, zorder=3)
    if graph.vertices:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize="small", markerscale=9 / size)
    _write(axes, graph, x, names, size)


def _points_a_unit(axes: Axes, x: np.ndarray, rounds: int) -> float:
    """Return about how many points there are between two neighbours, in a row or in a column."""
    box, figure = axes.get_position(), axes.figure.get_size_inches()
    across = 72 * box.width * figure[0] / (np.ptp(x) + 2 if len(x) else 1)
    return min(across, 72 * box.height * figure[1] / max(rounds, 1))


def _draw_edges(axes: Axes, graph: Graphs, x: np.ndarray) -> None:
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path as Line

    parents = np.repeat(np.arange(graph.vertices), np.diff(graph.child_starts))
    shared = np.bincount(graph.children, minlength=graph.vertices) > 1
    rows = [np.sort(x[graph.heights == height]) for height in range(int(graph.heights.max(initial=-1)) + 1)]
    bends: dict[tuple[int, int], list[float]] = {}
    lines = []
    for parent, child in zip(parents.tolist(), graph.children.tolist(), strict=True):
        above, below = (x[parent], graph.heights[parent]), (x[child], graph.heights[child])
        if not shared.any():
            # Up and then across: in a tree no two such lines meet, and none meets another vertex.
            lines.append(Line([above, (below[0], above[1]), below]))
            continue
        taken = bends.setdefault((parent, child), [])
        taken.append(_bend(above, below, rows, taken))
        middle = ((above[0] + below[0]) / 2 + taken[-1], (above[1] + below[1]) / 2)
        lines.append(Line([above, middle, below], [Line.MOVETO, Line.CURVE3, Line.CURVE3]))
    for chosen, colour, width in ((~shared, "0.6", 0.8), (shared, SHARED, 1.0)):
        paths = [line for line, child in zip(lines, graph.children, strict=True) if chosen[child]]
        axes.add_collection(PathCollection(paths, facecolor="none", edgecolor=colour, linewidth=width, zorder=2))


def _bend(above: tuple[float, int], below: tuple[float, int], rows: list[np.ndarray], taken: list[float]) -> float:
    """Return how far to move the middle of an edge sideways, so that it passes the vertices of the rounds between.

    The least bend that keeps its distance from all of them, else the one that comes nearest to that; none that another
    edge between the same two has taken.
    """
    heights = np.arange(below[1] + 1, above[1])
    share = (heights - below[1]) / (above[1] - below[1])
    best, most = 0.0, -1.0
    for bend in BENDS:
        if bend in taken:
            continue
        # A quadratic curve whose middle point is at half the height: its height grows evenly.
        middle = (above[0] + below[0]) / 2 + bend
        across = share**2 * above[0] + 2 * share * (1 - share) * middle + (1 - share) ** 2 * below[0]
        room = min((np.abs(rows[h] - place).min() for h, place in zip(heights, across, strict=True)), default=1.0)
        if room >= CLEAR:
            return bend
        if room > most:
            best, most = bend, room
    return best


def _write(axes: Axes, graph: Graphs, x: np.ndarray, names: Any, size: float) -> None:
    """Write the words under vertices without children and above others, labels into vertices with room."""
    words, labels = graph.data.get("word"), graph.data.get("label")
    for v in range(graph.vertices):
        place = (x[v], graph.heights[v])
        if labels is not None and np.ndim(labels[v]) == 0 and labels[v] >= 0 and size >= 9:
            axes.annotate(
                str(labels[v]), place, ha="center", va="center_baseline", color="white", fontsize=0.6 * size, zorder=4
            )
        if names is None or words is None or words[v] < 0:
            continue
        leaf = not graph.heights[v]
        axes.annotate(
            _plain(names[int(words[v])]),
            place,
            (0, -0.6 * size - 1) if leaf else (0.5 * size, 0.3 * size),
            textcoords="offset points",
            ha="center" if leaf else "left",
            va="top" if leaf else "bottom",
            rotation=90 if leaf else 0,
            fontsize=min(9.0, max(2.0, 0.8 * size)),
            annotation_clip=False,
            zorder=4,
        )


def _plain(word: str) -> str:
    """Return a word that matplotlib does not take for a formula."""
    return word.replace("$", r"\$")
