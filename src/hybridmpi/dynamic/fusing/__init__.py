"""Elementwise programs over rows, compiled: what a vertex function computes between its products of matrices.

A program is a list of values (read, constant, or a function of earlier ones) and of stores. It runs over the rows of
a batch one after the other, each row read and written once, without arrays in between.
"""

from hybridmpi.dynamic.fusing.calling import rounds, sequence
from hybridmpi.dynamic.fusing.engine import (
    Kernel,
    address_of_kernel,
    compile_kernel,
    compile_product,
    table_address,
)
from hybridmpi.dynamic.fusing.functions import FUNCTIONS
from hybridmpi.dynamic.fusing.kernel import as_text
from hybridmpi.dynamic.fusing.products import Gradient, Matrix, Product
from hybridmpi.dynamic.fusing.program import Apply, Load, Number, Operand, Store, Value

__all__ = [
    "FUNCTIONS",
    "Apply",
    "Gradient",
    "Kernel",
    "Load",
    "Matrix",
    "Number",
    "Operand",
    "Product",
    "Store",
    "Value",
    "address_of_kernel",
    "as_text",
    "compile_kernel",
    "compile_product",
    "rounds",
    "sequence",
    "table_address",
]
