"""The loops over vertices and edges: what is wrong with a graph, heights, edges turned round, some of the graphs.

Arrays are those of `Graphs`. Each loop is O(vertices + edges) and none recurses, so that depth costs nothing.
"""

from __future__ import annotations

import numpy as np

from hybridmpi.kernels.cpu import cpu_kernel

RIGHT, UNKNOWN_TYPE, DANGLING, FOREIGN, NEGATIVE_SLOT, REPEATED_SLOT, UNSORTED_SLOT = range(7)


@cpu_kernel
def first_fault(starts, types, child_starts, children, slots, type_count):
    """Return (what is wrong first, graph, vertex, edge): RIGHT with -1 for all three where nothing is. Local.

    Expects starts and child_starts that ascend and fit the lengths of the other arrays.
    """
    for graph in range(starts.shape[0] - 1):
        first, last = starts[graph], starts[graph + 1]
        for vertex in range(first, last):
            if types[vertex] < 0 or types[vertex] >= type_count:
                return UNKNOWN_TYPE, graph, vertex, -1
            for edge in range(child_starts[vertex], child_starts[vertex + 1]):
                child, slot = children[edge], slots[edge]
                if child < 0 or child >= types.shape[0]:
                    return DANGLING, graph, vertex, edge
                if child < first or child >= last:
                    return FOREIGN, graph, vertex, edge
                if slot < 0:
                    return NEGATIVE_SLOT, graph, vertex, edge
                if edge > child_starts[vertex] and slot <= slots[edge - 1]:
                    return REPEATED_SLOT if slot == slots[edge - 1] else UNSORTED_SLOT, graph, vertex, edge
    return RIGHT, -1, -1, -1


@cpu_kernel
def turned_round(child_starts, children):
    """Return (parent_starts int64 [V + 1], parents int64 [E]): the parents of each vertex, ascending. Local."""
    count = child_starts.shape[0] - 1
    parent_starts = np.zeros(count + 1, np.int64)
    for edge in range(children.shape[0]):
        parent_starts[children[edge] + 1] += 1
    for vertex in range(count):
        parent_starts[vertex + 1] += parent_starts[vertex]
    parents = np.empty(children.shape[0], np.int64)
    free = parent_starts[:-1].copy()
    for vertex in range(count):
        for edge in range(child_starts[vertex], child_starts[vertex + 1]):
            child = children[edge]
            parents[free[child]] = vertex
            free[child] += 1
    return parent_starts, parents


@cpu_kernel
def heights_of(child_starts, parent_starts, parents):
    """Return heights int32 [V]: the longest path down to a vertex without children; -1 on and above a cycle. Local.

    Kahn's algorithm: a vertex is done once all its children are.
    """
    count = child_starts.shape[0] - 1
    pending = np.empty(count, np.int64)
    heights = np.full(count, -1, np.int32)
    longest = np.zeros(count, np.int32)
    queue = np.empty(count, np.int64)
    filled = 0
    for vertex in range(count):
        pending[vertex] = child_starts[vertex + 1] - child_starts[vertex]
        if not pending[vertex]:
            queue[filled] = vertex
            filled += 1
    done = 0
    while done < filled:
        vertex = queue[done]
        done += 1
        heights[vertex] = longest[vertex]
        for edge in range(parent_starts[vertex], parent_starts[vertex + 1]):
            parent = parents[edge]
            longest[parent] = max(longest[parent], heights[vertex] + 1)
            pending[parent] -= 1
            if not pending[parent]:
                queue[filled] = parent
                filled += 1
    return heights


@cpu_kernel
def a_cycle(child_starts, children, heights):
    """Return the vertices of one cycle, each followed by its child, int64; none where all heights are known. Local."""
    count = heights.shape[0]
    vertex = 0
    while vertex < count and heights[vertex] >= 0:
        vertex += 1
    if vertex == count:
        return np.empty(0, np.int64)
    # A vertex without a height has a child without one: after as many steps as there are vertices we are on a cycle.
    path = np.empty(count + 1, np.int64)
    for step in range(count + 1):
        path[step] = vertex
        for edge in range(child_starts[vertex], child_starts[vertex + 1]):
            if heights[children[edge]] < 0:
                vertex = children[edge]
                break
    before = count - 1
    while path[before] != path[count]:
        before -= 1
    return path[before:count].copy()


@cpu_kernel
def some(numbers, starts, types, child_starts, children, slots, heights):
    """Return those graphs in that order: (starts, types, child_starts, children, slots, heights, vertices). Local.

    numbers int64 [n], within range; vertices int64: the old number of each vertex.
    """
    new_starts = np.zeros(numbers.shape[0] + 1, np.int64)
    edges = 0
    for place in range(numbers.shape[0]):
        first, last = starts[numbers[place]], starts[numbers[place] + 1]
        new_starts[place + 1] = new_starts[place] + last - first
        edges += child_starts[last] - child_starts[first]
    count = new_starts[-1]
    new_types, new_heights = np.empty(count, np.int32), np.empty(count, np.int32)
    vertices, new_child_starts = np.empty(count, np.int64), np.zeros(count + 1, np.int64)
    new_children, new_slots = np.empty(edges, np.int64), np.empty(edges, np.int32)
    for place in range(numbers.shape[0]):
        first, last = starts[numbers[place]], starts[numbers[place] + 1]
        moved = new_starts[place] - first
        first_edge, last_edge = child_starts[first], child_starts[last]
        moved_edges = new_child_starts[new_starts[place]] - first_edge
        for vertex in range(first, last):
            new = vertex + moved
            vertices[new] = vertex
            new_types[new] = types[vertex]
            new_heights[new] = heights[vertex]
            new_child_starts[new + 1] = child_starts[vertex + 1] + moved_edges
        for edge in range(first_edge, last_edge):
            new_children[edge + moved_edges] = children[edge] + moved
            new_slots[edge + moved_edges] = slots[edge]
    return new_starts, new_types, new_child_starts, new_children, new_slots, new_heights, vertices
