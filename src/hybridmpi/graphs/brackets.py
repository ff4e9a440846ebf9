"""Trees in brackets, as treebanks write them: `(3 (2 It) (4 (2 's) (4 good)))`, a label first, one tree a line."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from hybridmpi.errors import DataError
from hybridmpi.graphs.graphs import Graphs
from hybridmpi.graphs.ordered_trees import Numbering, numbering, of_arities

# Blanks are ASCII: treebanks have words with a no-break space inside.
_BLANK, _WORD = r"[ \t\r\n\f\v]", r"[^ \t\r\n\f\v()]+"
# A leaf as a whole, else the beginning of an inner vertex, else its end, else what should not be here.
_TOKEN = re.compile(rf"\({_BLANK}*({_WORD})(?:{_BLANK}+({_WORD}){_BLANK}*\))?|(\))|(\(|{_WORD})")
_PIECE = re.compile(rf"[()]|{_WORD}")


def from_brackets(lines: Iterable[str], words: Numbering, labels: Numbering | None = None) -> Graphs:
    """Return a tree for each line that is not blank, of any arity and depth; children come before their parents. Local.

    A vertex is `(label word)` or `(label tree tree ...)`; brackets within words are written otherwise, such as -LRB-.
    Types are "leaf" and "inner". Data, int32: "word", the number of a leaf's word, -1 at inner vertices; "label", the
    number of every vertex' label: without `labels` they must be integers. Raises DataError with line and column, both
    counted from 1.
    """
    starts: list[int] = [0]
    arities: list[int] = []
    found_labels: list[str] = []
    found_words: list[str] = []
    read: list[tuple[int, str]] = []  # the line of each graph
    for number, line in enumerate(lines, 1):
        tokens = _TOKEN.findall(line)
        if tokens:
            _take(tokens, arities, found_labels, found_words, number, line)
            starts.append(len(arities))
            read.append((number, line))
    counts = np.array(arities, np.int64)
    word = np.full(len(counts), -1, np.int32)
    word[counts == 0] = np.fromiter(map(numbering(words), found_words), np.int32, len(found_words))
    if labels is None:
        label = _integer_labels(found_labels, starts, read)
    else:
        label = np.fromiter(map(numbering(labels), found_labels), np.int32, len(found_labels))
    return of_arities(starts, counts, {"word": word, "label": label})


def _take(
    tokens: list[tuple[str, str, str, str]],
    arities: list[int],
    labels: list[str],
    words: list[str],
    number: int,
    line: str,
) -> None:
    """Append the vertices of one line in postorder."""
    opened: list[str] = []
    counts = [0]  # children so far: of the line, and of each vertex that is open
    for label, word, closes, _ in tokens:
        if word:
            labels.append(label)
            words.append(word)
            arities.append(0)
            counts[-1] += 1
        elif label:
            opened.append(label)
            counts.append(0)
        elif closes and opened and counts[-1]:
            labels.append(opened.pop())
            arities.append(counts.pop())
            counts[-1] += 1
        else:
            raise _complaint(number, line)
    if opened or counts[0] != 1:
        raise _complaint(number, line)


def _complaint(number: int, line: str) -> DataError:
    """Return the error that says where and how a line is wrong: read again slowly, piece by piece."""

    def error(column: int, what: str) -> DataError:
        return DataError(f"line {number}, column {column + 1}: {what}")

    # For each open bracket: its column, what came after it: label, word, trees.
    opened: list[dict[str, int]] = []
    closed = False
    for piece in _PIECE.finditer(line):
        text, column = piece[0], piece.start()
        if closed:
            return error(column, f"{text!r} after the end of the tree: expected one tree a line, in balanced brackets")
        if text != "(" and not opened:
            return error(column, f"{text!r} outside brackets: expected '(' first, as in (2 word)")
        if text == "(":
            if opened:
                if not opened[-1]["label"]:
                    return error(column, "'(' where a label should be: expected (label word) or (label tree ...)")
                if opened[-1]["words"]:
                    return error(column, "a tree beside a word: a leaf has one word, an inner vertex has trees only")
                opened[-1]["trees"] += 1
            opened.append({"column": column, "label": 0, "words": 0, "trees": 0})
        elif text == ")":
            vertex = opened.pop()
            if not vertex["label"]:
                return error(column, "brackets without a label and a word: expected (label word)")
            if not vertex["words"] and not vertex["trees"]:
                return error(column, "a label and nothing else: expected (label word) or (label tree ...)")
            closed = not opened
        elif not opened[-1]["label"]:
            opened[-1]["label"] = 1
        else:
            if opened[-1]["trees"]:
                return error(column, f"word {text!r} beside a tree: put it into brackets with a label of its own")
            if opened[-1]["words"]:
                return error(column, f"a second word {text!r} in one leaf: expected one word in each (label word)")
            opened[-1]["words"] = 1
    missing = "1 closing bracket is" if len(opened) == 1 else f"{len(opened)} closing brackets are"
    return error(opened[-1]["column"], f"'(' is never closed: {missing} missing at the end of the line")


def _integer_labels(labels: list[str], starts: list[int], read: list[tuple[int, str]]) -> np.ndarray:
    try:
        return np.fromiter(map(int, labels), np.int32, len(labels))
    except (ValueError, OverflowError):
        pass
    vertex = next(place for place, label in enumerate(labels) if not _is_integer(label))
    graph = int(np.searchsorted(starts, vertex, side="right")) - 1
    number, line = read[graph]
    token = next(token for token in _TOKEN.finditer(line) if token[1] and not _is_integer(token[1]))
    raise DataError(
        f"line {number}, column {token.start(1) + 1}: label {token[1]!r} is no int32: give `labels` a dict that "
        "numbers them"
    )


def _is_integer(label: str) -> bool:
    try:
        return -(1 << 31) <= int(label) < 1 << 31
    except ValueError:
        return False
