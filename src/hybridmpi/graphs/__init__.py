"""Instance graphs as arrays: trees, chains and graphs whose vertices share children; builders and a picture."""

from hybridmpi.graphs.graphs import Graphs

__all__ = ["Graphs"]
