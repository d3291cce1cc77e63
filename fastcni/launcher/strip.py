"""Remove annotations and columns from source before it is packed: only people and type checkers read them.

    from __future__ import annotations              (nothing)
    TYPE_CHECKING = False                           TYPE_CHECKING = False
    if TYPE_CHECKING:                               (nothing)
        from typing import Protocol
    def find(sock: Socket, name: str) -> Link:      def find(sock, name):
    count: int = 0                                  count = 0

The compiler notes a line and two columns for each instruction. A traceback needs the columns only to underline source,
and the plugin file has no source, so the code keeps its lines alone: that is a twelfth of its size.

A one-shot plugin reads its code at each start, so it pays for each byte of it.
"""

from __future__ import annotations

import ast
from os import PathLike


def stripped(source: bytes | str, filename: str | PathLike[str]) -> ast.Module:
    """The syntax tree of `source` (bytes or text), ready for compile(). Raises SyntaxError."""
    tree = ast.parse(source, filename)
    Stripper().visit(tree)
    ast.fix_missing_locations(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.expr, ast.stmt, ast.excepthandler, ast.pattern, ast.alias, ast.keyword, ast.arg)):
            node.end_lineno, node.col_offset, node.end_col_offset = node.lineno, -1, -1
    return tree


class Stripper(ast.NodeTransformer):
    """The rules that the module's docstring shows."""

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
        node.body = node.body or [ast.Pass()]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node
