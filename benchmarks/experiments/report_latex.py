"""Reports of experiments in LaTeX: tables with booktabs, in a document that compiles as it is."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from ..marks import visible
from .figure_grids import figure_grids
from .grid import Grid, GridRow, Written
from .grids import sheet_grids
from .results import Results, Shown

__all__ = ["escape_latex", "latex"]

_HEAD = r"""% Tables of experiments, written by comap. A table environment can be copied by itself;
% it needs the packages booktabs and textcomp.
\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage{textcomp}
\usepackage[a4paper,landscape,margin=1.5cm]{geometry}
\usepackage{booktabs}
\begin{document}
"""
_PLAIN = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "'": r"'",
    "-": r"{-}",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "−": r"$-$",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "…": r"\dots{}",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "≈": r"$\approx$",
    "→": r"$\to$",
    "‘": r"`",
    "’": r"'",
    "“": r"``",
    "”": r"''",
    "§": r"\S{}",
    "°": r"\textdegree{}",
    "µ": r"$\mu$",
    "\n": " ",
    "\t": " ",
}
_GREEK = {
    "GREEK SMALL LETTER " + name.upper(): rf"$\{name}$"
    for name in (
        *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
        *("mu", "nu", "xi", "pi", "rho", "sigma", "tau", "upsilon", "phi", "chi"),
        *("psi", "omega"),
    )
} | {
    "GREEK SMALL LETTER LAMDA": r"$\lambda$",
    "GREEK CAPITAL LETTER DELTA": r"$\Delta$",
    "GREEK CAPITAL LETTER SIGMA": r"$\Sigma$",
    "GREEK CAPITAL LETTER OMEGA": r"$\Omega$",
}


def latex(results: Results) -> str:
    r"""Return the tables of all experiments as a document.

    Args:
        results: What was measured.

    Example:
        >>> print(latex(Results(shown=())).splitlines()[-1])
        \end{document}
    """
    parts = [_HEAD]
    parts += [
        rf"\noindent {escape_latex(name)}: {escape_latex(told)}\par" + "\n"
        for name, told in results.about
    ]
    parts += [rf"\noindent {escape_latex(line)}\par" + "\n" for line in results.notes]
    for one in results.shown:
        parts += [_section(one)]
    parts += [rf"\noindent {escape_latex(line)}\par" + "\n" for line in results.left_out]
    return "".join(parts) + "\\end{document}\n"


def escape_latex(text: str) -> str:
    r"""Return text as LaTeX that shows it as it is; what its fonts lack is shown by its code point.

    Example:
        >>> print(escape_latex("ITP_R & 50 %"), escape_latex("\\input{x}"), escape_latex("α"))
        ITP\_R \& 50 \% \textbackslash{}input\{x\} $\alpha$
    """
    return "".join(map(_escaped, visible(text)))


def _escaped(char: str) -> str:
    if char in _PLAIN:
        return _PLAIN[char]
    if char.isascii() or ("À" <= char <= "ÿ" and char not in "×÷"):
        return char
    greek = _GREEK.get(unicodedata.name(char, ""))
    return greek or rf"\texttt{{[U+{ord(char):04X}]}}"


def _section(one: Shown) -> str:
    told = one.experiment
    title = escape_latex(f"{told.paper}, {told.published}: {told.title}")
    grids = figure_grids(one.panels, one.quotes) if one.sheet is None else sheet_grids(one.sheet)
    parts = [f"\n\\section*{{{title}}}\n{escape_latex(told.about)}\n"]
    parts += [_table(grid, f"{title}. {escape_latex(grid.title)}") for grid in grids]
    parts += [f"\n\\noindent {escape_latex(text)}\\par\n" for text in told.footnotes.values()]
    return "".join(parts)


def _table(grid: Grid, title: str) -> str:
    """Return one table environment."""
    width = len(grid.head)
    shape = "l" * grid.text + "r" * (width - grid.text)
    lines = [
        r"\begin{table}[htbp]",
        r"\centering\footnotesize\setlength{\tabcolsep}{4pt}",
        rf"\caption{{{title}.}}",
        rf"\begin{{tabular}}{{@{{}}{shape}@{{}}}}",
        r"\toprule",
        " & ".join(map(_heading, grid.head)) + r" \\",
        r"\midrule",
        *_body(grid.rows, width),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    notes = [escape_latex(one) for one in grid.notes]
    notes += [rf"\textsuperscript{{{mark}}}~{escape_latex(text)}" for mark, text in grid.footnotes]
    if notes:
        lines += [r"\par\smallskip\begin{minipage}{0.95\linewidth}\raggedright\scriptsize"]
        lines += [r"\par ".join(notes), r"\end{minipage}"]
    return "\n" + "\n".join([*lines, r"\end{table}"]) + "\n"


def _heading(name: str) -> str:
    """Return a column's head; where it is long, on two lines."""
    words = name.split(" ")
    if len(name) <= 12 or len(words) < 2:
        return escape_latex(name)
    place = min(
        range(1, len(words)),
        key=lambda i: max(len(" ".join(words[:i])), len(" ".join(words[i:]))),
    )
    first, second = (escape_latex(" ".join(part)) for part in (words[:place], words[place:]))
    return rf"\shortstack[r]{{{first} \\ {second}}}"


def _body(rows: Sequence[GridRow], width: int) -> list[str]:
    lines = []
    for place, row in enumerate(rows):
        if row.kind == "block":
            lines += [r"\addlinespace"] if place else []
            name = escape_latex(row.cells[0].text)
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}l}}{{\itshape {name}}} \\")
            continue
        lines += [r"\midrule"] if row.kind == "counts" else [r"\addlinespace"] if row.rule else []
        lines.append(" & ".join(_cell(one) for one in row.cells) + r" \\")
    return lines


def _cell(one: Written) -> str:
    text = escape_latex(one.text)
    if one.best:
        text = rf"\textbf{{\boldmath {text}}}"
    return text + (rf"\textsuperscript{{{','.join(one.marks)}}}" if one.marks else "")
