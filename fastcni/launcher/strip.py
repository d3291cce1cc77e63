"""Remove from packed code what plugins never read: annotations, their imports, and source columns.

    from __future__ import annotations              (nothing)
    TYPE_CHECKING = False                           TYPE_CHECKING = False
    if TYPE_CHECKING:                               (nothing)
        from typing import Protocol
    def find(sock: Socket, name: str) -> Link:      def find(sock, name):
    count: int = 0                                  count = 0

The compiler records a line and two columns for each instruction. A traceback needs the columns only to underline
source, which the plugin file does not have, so the code keeps only the lines. The columns are a fifth of the code's
size.

A one-shot plugin reads its code at each start, so each byte costs time.
"""

from __future__ import annotations

import ast
from itertools import groupby
from os import PathLike
from types import CodeType
from typing import Any

NO_COLUMNS, NO_LOCATION = 13, 15        # kinds of entries in a code object's location table
MAX_UNITS = 8                           # the most units (two bytes of instructions) in one entry


def stripped(source: bytes | str, filename: str | PathLike[str]) -> ast.Module:
    """Return the syntax tree of `source` (bytes or text), ready for compile(). Raises SyntaxError."""
    return strip(ast.parse(source, filename))


def strip(tree: ast.Module) -> ast.Module:
    """Strip the tree itself, and return it."""
    Stripper().visit(tree)
    return tree


def without_columns(code: CodeType) -> CodeType:
    """Return a copy of the code object, and of all code objects in it, with the same lines and without columns."""
    consts = tuple(without_columns(it) if isinstance(it, CodeType) else it for it in code.co_consts)
    return code.replace(co_consts=consts, co_linetable=line_table(code))


def line_table(code: CodeType) -> bytes:
    """Return the code's location table with lines and without columns. Source: "Source code locations",
    Objects/locations.md of CPython."""
    table, before = bytearray(), code.co_firstlineno
    for line, units in groupby(line for line, *_ in code.co_positions()):
        left = sum(1 for _ in units)
        while left:
            size = min(left, MAX_UNITS)
            left -= size
            table.append(0x80 | (NO_LOCATION if line is None else NO_COLUMNS) << 3 | size - 1)
            if line is not None:
                table += signed_varint(line - before)
                before = line
    return bytes(table)


def signed_varint(number: int) -> bytes:
    """Encode a number: six bits in each byte, lowest bits first, and a bit that says whether more bytes follow. The
    lowest bit is the sign."""
    number = -number << 1 | 1 if number < 0 else number << 1
    found = bytearray()
    while number >= 64:
        found.append(64 | number & 63)
        number >>= 6
    return bytes((*found, number))


class Stripper(ast.NodeTransformer):
    """An AST transformer with the rules in the module's docstring."""

    def visit(self, node: ast.AST) -> Any:
        """Visit statements, not expressions, which contain neither statements nor annotations and are the largest part
        of a tree. An empty block becomes `pass`."""
        found: Any = node if isinstance(node, ast.expr) else super().visit(node)
        if getattr(found, "body", None) == [] and not isinstance(found, ast.Module):
            # The node of a `case` has no line number
            found.body = [ast.copy_location(ast.Pass(), getattr(node, "pattern", node))]
        return found

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt] | None:
        self.generic_visit(node)
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse or None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node

    visit_AsyncFunctionDef = visit_FunctionDef
