"""Annotations of fields as pages show them: the types, without the ranges beside them."""

from __future__ import annotations

import ast
from typing import get_args

from comap import settings

__all__ = ["plain_annotation"]


def plain_annotation(annotation: ast.expr) -> str:
    """Return an annotation's source with ``int`` for ``PositiveInt`` and for ``Annotated[int, ...]``."""
    return ast.unparse(_WithoutNotes().visit(ast.parse(ast.unparse(annotation), mode="eval")))


class _WithoutNotes(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        alias = getattr(settings, node.id, None)
        if hasattr(alias, "__metadata__"):
            return ast.Name(get_args(alias)[0].__name__)
        return node
