"""How readable the code is, in numbers: the shares that the house style names, by folder.

``python benchmarks/measure/readability.py [ROOT] [--names]`` prints a table of the tracked Python
files without tests, docs and examples. The numbers are a thermometer, not an aim:
``tests/test_house.py`` lets none of them rise.
``--names`` also prints how often each vague name is bound.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

LONG_FUNCTION = 25
"""Lines from which a function is expected to have paragraphs."""

OUTSIDE = {"tests", "docs", "examples"}

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# Strings and comments; a # in a string is none. Much faster than Python's own tokenizer.
_STRING_OR_COMMENT = re.compile(
    r""""{3}(?:\\.|[^\\])*?"{3}|'{3}(?:\\.|[^\\])*?'{3}"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#[^\n]*""",
    re.DOTALL,
)

# Pronouns, participles and prepositions: words that do not say what a value is.
# fmt: off
VAGUE_NAMES = frozenset((
    "about", "above", "again", "all", "another", "any", "anything", "asked", "at", "been", "begun",
    "below", "both", "built", "called", "came", "carried", "chosen", "come", "done", "drawn",
    "each", "either", "else", "ended", "even", "every", "everything", "few", "found", "from",
    "gave", "given", "gone", "got", "had", "heard", "held", "here", "his", "how", "into", "it",
    "its", "kept", "known", "left", "less", "like", "made", "many", "marked", "meant", "met",
    "more", "much", "named", "needed", "neither", "next", "none", "nothing", "of", "old", "one",
    "ones", "only", "onto", "other", "own", "said", "seen", "sent", "several", "shown", "since",
    "so", "some", "something", "spent", "stated", "still", "stopped", "such", "taken", "tell",
    "tells", "than", "that", "their", "them", "then", "there", "these", "they", "this", "those",
    "through", "to", "told", "took", "tried", "two", "under", "until", "upon", "used", "wanted",
    "was", "way", "went", "what", "whatever", "when", "where", "which", "whom", "whose", "with",
    "within", "without", "won", "written",
))
# fmt: on


@dataclass(slots=True)
class Counts:
    """What is counted in a folder."""

    lines: int = 0
    tuple_assignments: int = 0
    conditional_expressions: int = 0
    comprehensions: int = 0
    comments: int = 0
    long_functions: int = 0
    long_functions_without_blank_line: int = 0
    bindings: int = 0
    vague_names: Counter[str] = field(default_factory=Counter)

    def per_thousand_lines(self, count: int) -> float:
        return 1000 * count / max(self.lines, 1)

    def shares(self) -> dict[str, float]:
        """Return the shares by name: per 1,000 lines, or percent where the name says so."""
        dense = self.long_functions_without_blank_line
        vague = self.vague_names.total()

        return {
            "tuple assignments": self.per_thousand_lines(self.tuple_assignments),
            "conditional expressions": self.per_thousand_lines(self.conditional_expressions),
            "comprehensions": self.per_thousand_lines(self.comprehensions),
            "comments": self.per_thousand_lines(self.comments),
            "long functions without a blank line (%)": 100 * dense / max(self.long_functions, 1),
            "vague bindings (%)": 100 * vague / max(self.bindings, 1),
        }

    def add(self, path: Path) -> None:
        """Count one module."""
        text = path.read_text(encoding="utf-8")
        source_lines = text.splitlines()
        tree = ast.parse(text)

        self.lines += len(source_lines)
        self.comments += _comments(text)
        for node in _nodes(tree):
            self._add_node(node, source_lines)

    def merge(self, counts: Counts) -> None:
        """Add what another folder or module has."""
        for part in fields(self):
            total = getattr(self, part.name) + getattr(counts, part.name)
            setattr(self, part.name, total)

    def _add_node(self, node: ast.AST, source_lines: list[str]) -> None:
        if isinstance(node, ast.Assign) and _is_tuple_assignment(node):
            self.tuple_assignments += 1
        elif isinstance(node, ast.IfExp):
            self.conditional_expressions += 1
        elif isinstance(node, _COMPREHENSIONS):
            self.comprehensions += 1
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._add_function(node, source_lines)

        name = _bound_name(node)
        if name is not None:
            self.bindings += 1
            if name.strip("_") in VAGUE_NAMES:
                self.vague_names[name.strip("_")] += 1

    def _add_function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, source_lines: list[str]
    ) -> None:
        last = node.end_lineno or node.lineno
        body = source_lines[node.lineno - 1 : last]

        # The docstring counts for nothing: a blank line in it separates no steps.
        if ast.get_docstring(node) is not None:
            docstring_end = node.body[0].end_lineno or node.lineno
            signature = source_lines[node.lineno - 1 : node.body[0].lineno - 1]
            body = signature + source_lines[docstring_end:last]

        if len(body) < LONG_FUNCTION:
            return
        self.long_functions += 1
        if all(line.strip() for line in body):
            self.long_functions_without_blank_line += 1


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a tree, but for contexts and operators, which are half of them."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                nodes += [child for child in value if isinstance(child, ast.AST)]
            elif isinstance(value, ast.AST) and value._fields:
                nodes.append(value)


def _comments(text: str) -> int:
    strings_and_comments = _STRING_OR_COMMENT.finditer(text)
    return sum(match[0].startswith("#") for match in strings_and_comments)


def _is_tuple_assignment(node: ast.Assign) -> bool:
    return isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def _bound_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg) and node.arg not in {"self", "cls"}:
        return node.arg
    return None


def tracked_files(root: Path) -> Iterator[Path]:
    """Yield the Python files that git tracks, without tests, docs and examples."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=root, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        path = Path(name)
        if path.parts[0] not in OUTSIDE and (root / path).is_file():
            yield path


def measure(root: Path, paths: Iterable[Path]) -> dict[str, Counts]:
    """Return the shares of each top folder and of all files (``"all"``)."""
    by_folder: dict[str, Counts] = {}
    for path in paths:
        folder = path.parts[0] if len(path.parts) > 1 else "(root)"
        by_folder.setdefault(folder, Counts()).add(root / path)

    total = Counts()
    for counts in by_folder.values():
        total.merge(counts)
    return {"all": total, **by_folder}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--names", action="store_true", help="print the vague names")
    options = parser.parse_args()

    by_folder = measure(options.root, tracked_files(options.root))
    titles = list(Counts().shares())
    print(f"{'folder':14} {'lines':>6}  " + "  ".join(titles))
    for folder, counts in sorted(by_folder.items()):
        cells = [f"{value:{len(title)}.1f}" for title, value in counts.shares().items()]
        print(f"{folder:14} {counts.lines:6}  " + "  ".join(cells))

    if options.names:
        for name, count in by_folder["all"].vague_names.most_common():
            print(f"{count:5} {name}")


if __name__ == "__main__":
    main()
