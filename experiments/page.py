"""page.html of a table: claims and verdicts first, then figures, measures and panels. No script, nothing fetched but
the figures beside it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from experiments import text
from experiments.summary import Judged, Summary
from experiments.table import Measure
from rlvr_jax.report.style import CSS
from rlvr_jax.report.text import escape

FIGURES = {"effects.png": "Paired differences", "heatmap.png": "Arms by cases", "curves.png": "Curves"}
OWN_CSS = """
.claims { display: grid; gap: 14px; }
.claims h3 { overflow-wrap: anywhere; }
.verdict { font-size: 1.15rem; font-weight: 650; margin: 8px 0 4px; }
.claims dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 14px; margin: 6px 0; font-size: .95rem; }
.claims dt { color: var(--soft); } .claims dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } .wide img { min-width: 760px; }
.facts td { overflow-wrap: anywhere; } .facts { max-width: 900px; }
td.mean, td.difference { white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.new > * { border-top: 2px solid var(--line); }
@media (max-width: 600px) { .claims dl { grid-template-columns: 1fr; } .claims dd { margin-bottom: 6px; } }
"""


def page(summary: Summary, figures: Collection[str]) -> str:
    """The whole page; `figures` are the names of those that lie beside it."""
    table = summary.table
    parts = [f"<h1>{escape(table.title)}</h1>", f'<p class="lead">{escape(table.question)}</p>']
    if summary.missing:
        parts.append(f'<div class="notes">{_words(text.missing_words(summary))}</div>')
    if table.notes:
        parts.append(f"<p>{_words(table.notes)}</p>")
    if summary.judged:
        cards = "".join(_claim(summary, judged) for judged in summary.judged)
        parts.append(_section("Claims", f'<div class="claims">{cards}</div>'))
    parts += [_figure(title, name) for name, title in FIGURES.items() if name in figures]
    if summary.values:
        note = f'<p class="soft">{_words(text.family_words(summary))}</p>'
        parts.append(_section("Measures", note + "".join(_measure(summary, measure) for measure in table.measures)))
    parts += [_panel(summary, name, panel) for name, panel in summary.panels]
    rows = [f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in text.facts(summary)]
    facts = f'<div class="scroll facts"><table><tbody>{"".join(rows)}</tbody></table></div>'
    parts.append(_section("Where the numbers come from", facts))
    return _document(table.title, "\n".join(parts))


def _document(title: str, body: str) -> str:
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{CSS}{OWN_CSS}</style></head>
<body><main>
{body}
</main></body></html>
"""


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _words(words: str) -> str:
    """Escaped, with `code` in backquotes as code."""
    parts = escape(words).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def _figure(title: str, file: str) -> str:
    """A figure says in itself how it is to be read."""
    image = f'<div class="wide"><img alt="{escape(title)}" src="{escape(file)}"></div>'
    return _section(title, f'<figure class="card">{image}</figure>')


def _claim(summary: Summary, judged: Judged) -> str:
    claim = judged.claim
    rows = "".join(
        f"<dt>{escape(' · '.join(part for part in (case, column) if part) or 'here')}</dt>"
        f"<dd>{escape(difference)}{f', p {escape(p)}' if p else ''}</dd>"
        for case, column, difference, p in text.claim_lines(summary, judged)
    )
    return (
        f'<div class="card"><h3>{escape(claim.text)}</h3><p class="verdict">{escape(judged.verdict.word)}</p>'
        f"<p>{escape(text.verdict_sentence(judged))}</p><dl><dt>source</dt><dd>{escape(claim.source)}</dd>"
        f"<dt>published</dt><dd>{escape(claim.published or text.MISSING)}</dd>"
        f"<dt>asked here</dt><dd>{escape(text.asked_words(summary, judged))} in {escape(claim.measure)}</dd>"
        f"{rows}</dl></div>"
    )


def _measure(summary: Summary, measure: Measure) -> str:
    parts = [
        f"<h3>{escape(measure.label)}</h3>",
        f'<p class="soft">{_words(text.sentence(text.describe(measure)))}</p>',
    ]
    for case in summary.table.cases:
        lines = text.lines_of(summary, measure, case)
        kept = text.shown_fields(lines)
        heads = [text.HEADS[index].format(reference=summary.table.reference) for index in kept]
        title = f"<p><b>{escape(case)}</b></p>" if case else ""
        parts.append(title + _grid(heads, _line_rows(lines, kept)) + "<p></p>")
    return "".join(parts)


def _line_rows(lines: Sequence[text.Line], kept: Sequence[int]) -> Iterable[str]:
    """The rows of a measure's table; an arm's name stands once, above its columns."""
    last = None
    for line in lines:
        cells = []
        for index in kept:
            field, value = text.FIELDS[index], line[index]
            if field == "arm":
                cells.append(f"<th>{escape(value if value != last else '')}</th>")
            else:
                cells.append(f'<td class="{field}">{escape(value)}</td>')
        yield f"<tr{'' if line.arm == last else ' class=new'}>{''.join(cells)}</tr>"
        last = line.arm


def _grid(heads: Sequence[str], rows: Iterable[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _panel(summary: Summary, name: str, panel: dict | None) -> str:
    own = next(panel for panel in summary.table.panels if panel.name == name)
    words = text.holds_words(panel)
    body = f'<p class="soft">Source: {escape(own.source)}.</p>'
    if panel is not None:
        cells = lambda row: "".join(f"<td>{escape(text.panel_cell(cell))}</td>" for cell in row)
        body += _grid(panel["columns"], [f"<tr>{cells(row)}</tr>" for row in panel["rows"]])
        if panel["note"]:
            body += f"<p></p><p>{_words(panel['note'])}</p>"
    verdict = f'<p class="verdict">{escape(words)}</p>' if words else ""
    return _section(own.title, verdict + body)
