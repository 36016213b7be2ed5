r"""One spelling for what is only typography: LaTeX wrappers, Unicode signs, currency, spaces.

After `tidy` the content of \text{…} and its like stands in double quotes, set braces are ⟅ ⟆, math delimiters and
currency signs are gone, and every minus, times, root and superscript has its one form.
"""

from __future__ import annotations

import re

SET_OPEN, SET_CLOSE = "⟅", "⟆"
ROW = "␤"  # the end of a line in a matrix
_OPEN, _CLOSE = f"([{{{SET_OPEN}⟨", f")]}}{SET_CLOSE}⟩"

_COMMANDS = {
    "×": "times", "⋅": "cdot", "·": "cdot", "∙": "cdot", "π": "pi", "∞": "infty", "≤": "le", "≥": "ge", "≠": "ne",
    "≈": "approx", "±": "pm", "∓": "mp", "∪": "cup", "√": "surd", "∈": "in", "∅": "emptyset", "θ": "theta",
    "α": "alpha", "β": "beta", "λ": "lambda",
}  # fmt: skip
_SIGNS = {
    **{sign: f"\\{name} " for sign, name in _COMMANDS.items()},
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # the full-width forms of ASCII
    **dict.fromkeys("−–‐‑﹣⁻", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000\t\r\n", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f\u00ad", ""),
    **{sign: f"^{{{i}}}" for i, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    **{sign: f"\\frac{{{a}}}{{{b}}}" for sign, a, b in zip("½⅓⅔¼¾⅕⅛⅜⅝⅞", "1121311357", "2334458888")},
    "°": "^\\circ ",
    "∛": "\\sqrt[3]",
    **dict.fromkeys("÷⁄∕", "/"),
    **dict.fromkeys("€£¥₹", ""),
    **dict.fromkeys("\"“”‘’'", ""),
}
_TABLE = str.maketrans(_SIGNS)
_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathit|mathsf|mathtt|mbox|hbox|operatorname|emph)"
    r"\s*\{([^{}]*)\}"
)
_REPLACED = [
    (re.compile(r"(?<=[^\s$])\$\s+\$(?=[^\s$])"), ", "),  # two formulas side by side
    (re.compile(r"\bRs\.?\s*(?=\d)"), ""),
    (re.compile(r"\\\$|\$|\\[()]|\\\[|\\\]"), ""),
    (re.compile(r"\\([dtc])frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![A-Za-z])\s*\.?"), ""),
    (re.compile(r"\\!|\\(?:no)?linebreak(?![A-Za-z])"), ""),
    (re.compile(r"(\d)\s*\{,\}\s*(?=\d)"), r"\1,"),
    (re.compile(r"(?<=\d)\\[,; ](?=\d{3}(?!\d))"), ","),
    (re.compile(r"\\(?:[,:; ]|quad(?![A-Za-z])|qquad(?![A-Za-z]))|~"), " "),
    (re.compile(r"\\%|\b[Pp]er ?cent\b"), "%"),
    (re.compile(r"\\(?:\{|lbrace(?![A-Za-z]))"), SET_OPEN),
    (re.compile(r"\\(?:\}|rbrace(?![A-Za-z]))"), SET_CLOSE),
    (re.compile(r"\\langle(?![A-Za-z])"), "⟨"),
    (re.compile(r"\\rangle(?![A-Za-z])"), "⟩"),
    (re.compile(r"\\(?:leq?slant|leq)(?![A-Za-z])|<="), r"\\le "),
    (re.compile(r"\\(?:geq?slant|geq)(?![A-Za-z])|>="), r"\\ge "),
    (re.compile(r"\\neq(?![A-Za-z])|!="), r"\\ne "),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\varnothing(?![A-Za-z])|⟅\s*⟆"), r"\\emptyset "),
    (re.compile(r"\\(?:degree|degrees)(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}"), r"^\\circ "),
    (re.compile(r"\*\*"), "^"),
    *(
        (re.compile(rf"(?<=\d)\s*\"?\s*\b{word}\b\s*\"?", re.IGNORECASE), rf"\\times 10^{{{zeros}}} ")
        for word, zeros in (("hundred", 2), ("thousand", 3), ("million", 6), ("billion", 9), ("trillion", 12))
    ),
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)"), r"\\times "),
    (re.compile(r"\s*(?:\"\s*)?\b(?:[Dd]ollars?|USD|[Ee]uros?|EUR)\b(?:\s*\")?\s*$"), ""),
]


def _quoted(match: re.Match) -> str:
    content = match.group(1).strip()
    return content if re.fullmatch(r"[-+\d.,/ %]*\d[-+\d.,/ %]*", content) else f' "{content}" ' if content else " "


def tidy(text: str) -> str:
    """The text in the one spelling. Values do not change by it, and no value arises from none."""
    text = text.replace("\\\\", f" {ROW} ").translate(_TABLE)
    for _ in range(3):  # \textbf{\text{…}}: from the inside out, a few layers
        text, count = _TEXT.subn(_quoted, text)
        if not count:
            break
    if "\\" in text or "$" in text or not text.isalnum():
        for pattern, replacement in _REPLACED:
            text = pattern.sub(replacement, text)
    return " ".join(text.split()).strip(f" ,;:{ROW}").rstrip(". ").strip()


def balanced(text: str) -> bool:
    r"""True when the grouping braces { } of a text close one another; \{ and \} do not count."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth < 0:
            return False
    return depth == 0


def split(text: str, separators: re.Pattern) -> tuple[list[str], list[str]]:
    """The parts of a text between the separators that stand outside all brackets, and those separators.

    An interval closes "[" with ")", so any closing bracket ends the last one opened.
    """
    parts, found, depth, start, position = [], [], 0, 0, 0
    while position < len(text):
        if text[position] in _OPEN:
            depth += 1
        elif text[position] in _CLOSE:
            depth -= 1
        elif depth == 0 and (match := separators.match(text, position)) and match.end() > position:
            parts.append(text[start:position].strip())
            found.append(match.group().strip())
            start = position = match.end()
            continue
        position += 1
    return [*parts, text[start:].strip()], found


def enclosed(text: str) -> bool:
    """True when the first character opens a bracket that only the last one closes."""
    if len(text) < 2 or text[0] not in _OPEN or text[-1] not in _CLOSE:
        return False
    depth = 0
    for position, sign in enumerate(text):
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth == 0:
            return position == len(text) - 1
    return False


def words(text: str) -> str:
    """For comparing texts: lower case, no quotes, single spaces, none around signs, no article in front."""
    text = " ".join(text.replace('"', " ").lower().split()).strip(" .,;:!?")
    text = re.sub(r"\s*([^\w\s])\s*", r"\1", text)
    text = re.sub(r"^\(([a-z])\)$", r"\1", text)
    return re.sub(r"^(?:the|a|an) (?=\w{2})", "", text)
