"""Read binary trees in brackets, `(label (label word) (label ...))`, one a line: the Stanford Sentiment Treebank's."""

import re

import numpy as np


class Tree:
    """One tree as int arrays over its nodes, children before parents; the last node is the root.

    left, right  child nodes, -1 at a leaf          word   word id, -1 at an inner node
    label        class 0 to 4                       level  0 at a leaf, else 1 + the children's highest
    taken        level of the parent, at which this node's state is used; -1 at the root
    """

    def __init__(self, nodes):
        self.left, self.right, self.word, self.label, self.level = np.array(nodes, dtype=np.int64).T.copy()
        self.taken = np.full(len(nodes), -1)
        inner = np.flatnonzero(self.left >= 0)
        self.taken[self.left[inner]] = self.taken[self.right[inner]] = self.level[inner]

    def __len__(self):
        return len(self.left)


def parse(line, ids):
    """Return the tree of one line; words not seen yet get the next id in ids."""
    nodes, stack = [], []  # stack: of every open bracket, its label and the nodes of its children
    for token in re.findall(r"\(|\)|[^\s()]+", line):
        if token == "(":
            stack.append([])
        elif token != ")":
            stack[-1].append(token)
        else:
            label, *rest = stack.pop()
            if isinstance(rest[0], str):
                nodes.append((-1, -1, ids.setdefault(rest[0], len(ids)), int(label), 0))
            else:
                left, right = rest
                nodes.append((left, right, -1, int(label), 1 + max(nodes[left][4], nodes[right][4])))
            if stack:
                stack[-1].append(len(nodes) - 1)
    return Tree(nodes)


def load(path):
    """Return (trees, number of words) of a file; words are numbered in the order in which they occur first."""
    ids = {}
    with open(path, encoding="utf-8") as file:
        return [parse(line, ids) for line in file if line.strip()], len(ids)
