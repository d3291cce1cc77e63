"""Make the mutants of a module by cosmic-ray's operators, and by an operator that removes a call whose value is not
used.

Two kinds of mutants are left out: those that tests cannot notice or always notice (`==` as `is`, `+` as `**`), and
those of annotations and their imports, which no code runs.
"""

import ast
import difflib

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator

from fastcni.launcher.strip import stripped

NAMES = """AddNot ExceptionReplacer NumberReplacer RemoveDecorator ReplaceAndWithOr ReplaceBreakWithContinue
    ReplaceContinueWithBreak ReplaceFalseWithTrue ReplaceOrWithAnd ReplaceTrueWithFalse ZeroIterationForLoop
    ReplaceUnaryOperator_Delete_Not ReplaceBinaryOperator_Add_Sub ReplaceBinaryOperator_Sub_Add
    ReplaceBinaryOperator_BitAnd_BitOr ReplaceBinaryOperator_BitOr_BitAnd ReplaceBinaryOperator_LShift_RShift
    ReplaceBinaryOperator_RShift_LShift ReplaceBinaryOperator_FloorDiv_Mul ReplaceBinaryOperator_Mul_FloorDiv
    ReplaceComparisonOperator_Eq_NotEq ReplaceComparisonOperator_NotEq_Eq ReplaceComparisonOperator_Is_IsNot
    ReplaceComparisonOperator_IsNot_Is ReplaceComparisonOperator_Lt_LtE ReplaceComparisonOperator_LtE_Lt
    ReplaceComparisonOperator_Gt_GtE ReplaceComparisonOperator_GtE_Gt ReplaceComparisonOperator_Lt_GtE
    ReplaceComparisonOperator_Gt_LtE""".split()


class RemoveCall(Operator):
    """An operator that replaces a statement such as `undo(...)` by `pass`."""

    def mutation_positions(self, node):
        if node.type == "simple_stmt" and node.children[0].type in ("atom_expr", "power"):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node, index):
        node.children[0] = get_ast(f"{node.children[0].get_first_leaf().prefix}pass").children[0]
        return node

    @classmethod
    def examples(cls):
        return ()


OPERATORS = {name: get_operator(f"core/{name}") for name in NAMES} | {"RemoveCall": RemoveCall}


class Mutant:
    """One change of one module. module: the module's path from the root. line: the first changed line. source, text:
    the module's source without and with the change."""

    def __init__(self, module, source, text):
        self.module, self.source, self.text = module, source, text
        self.before, self.after = source.splitlines(), text.splitlines()
        self.line = 1 + next((at for at, (old, new) in enumerate(zip(self.before, self.after, strict=False))
                              if old != new), 0)

    def lines(self):
        """Return the lines of the original statement that contains the change. For a compound statement, return only
        the lines of its head."""
        spans = []
        for node in ast.walk(ast.parse("\n".join(self.before))):
            if isinstance(node, ast.stmt) and node.lineno <= self.line <= node.end_lineno:
                body = getattr(node, "body", None)
                last = body[0].lineno - 1 if body else node.end_lineno
                if self.line <= last:
                    spans.append(range(node.lineno, max(last, node.lineno) + 1))
        return min(spans, key=len, default=range(self.line, self.line + 1))

    def diff(self):
        return "\n".join(list(difflib.unified_diff(self.before, self.after, self.module, self.module, n=1,
                                                   lineterm=""))[2:])


def positions(source):
    """Return [(operator's name, number of its occurrence)] of the possible mutants of a source text."""
    nodes = list(ast_nodes(get_ast(source)))
    return [(name, occurrence) for name, operator in OPERATORS.items()
            for occurrence in range(sum(len(list(operator().mutation_positions(node))) for node in nodes))]


def make(module, source, name, occurrence):
    """Return a Mutant, or None if the change is in an annotation, is not valid Python, or is not possible."""
    try:
        text = MutationVisitor.mutate_code(source, OPERATORS[name](), occurrence)
        same = text is None or _code(text) == _code(source)
    except (SyntaxError, AttributeError):       # cosmic-ray's ExceptionReplacer fails at `module.Exception` in a tuple
        return None
    if same:
        return None
    mutant = Mutant(module, source, text)
    return None if "TYPE_CHECKING" in mutant.before[mutant.line - 1] else mutant


def _code(source):
    return ast.dump(stripped(source, "module"))
