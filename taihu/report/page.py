"""The whole page: what a run was, its figures, and what it has none of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from taihu.core import __version__
from taihu.core.base.words import listed
from taihu.report.charts import Missing, Section, plain
from taihu.report.comparison import compared, with_names
from taihu.report.drawing import draw_figure, html
from taihu.report.learning import learning
from taihu.report.members import members
from taihu.report.planned import Planned, planned_of
from taihu.report.run import Run
from taihu.report.summary import figures_of, how_it_ended, what_it_was
from taihu.report.sweep import sweep
from taihu.report.times import times
from taihu.report.traffic import traffic
from taihu.report.values import text

_TABLES: Final = ("model", "data", "train", "optimizer", "exchange", "compression", "cluster")
_TABLES_OF_SCRIPTS: Final = ("exchange", "compression", "cluster")


def page_of(run: Run) -> str:
    """The report of a run as one HTML page that needs nothing else."""
    planned = planned_of(run)
    sections, missing = sections_of(run, planned)
    head = (
        f"<h1>{html(text(run.name))}</h1><p>{html(what_it_was(run))}</p><p>{html(how_it_ended(run))}</p>"
        f'<dl class="tiles">{"".join(_tiles(run))}</dl>'
    )
    return _document(text(run.name), head, sections, missing)


def comparison_of(runs: Sequence[Run]) -> str:
    """A page of several runs beside each other."""
    named = with_names(runs)
    title = listed([text(run.name) for run in named])
    lines = "".join(f"<p><b>{html(text(run.name))}</b>: {html(what_it_was(run))}</p>" for run in named)
    return _document(title, f"<h1>{html(title)}</h1>{lines}", compared(named), [])


def sections_of(run: Run, planned: Planned | None) -> tuple[list[Section], list[Missing]]:
    """All sections that there is something in, and what is missing."""
    learned = learning(run)
    found: list[Section | None] = []
    missing: list[Missing] = []
    if isinstance(learned, Section):
        found.append(learned)
    else:
        missing.append(learned)
    if run.is_sweep:
        found.append(sweep(run))
    else:
        for section, absent in (times(run, planned), traffic(run), members(run)):
            found.append(section)
            missing += absent
    found.append(_settings(run))
    return [section for section in found if section is not None], missing


def _document(title: str, head: str, sections: Sequence[Section], missing: Sequence[Missing]) -> str:
    own = files("taihu.report")
    style, script = (own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    parts = [_section(section) for section in sections]
    links = "".join(f'<li><a href="#{section.key}">{html(section.title)}</a></li>' for section in sections)
    if missing:
        parts.append(_missing(missing))
        links += '<li><a href="#missing">Not in this report</a></li>'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="generator" content="taihu {html(__version__)}">'
        f"<title>{html(title)} - taihu report</title><style>{style}</style></head>"
        f'<body><header>{head}<nav aria-label="Sections"><ul>{links}</ul></nav></header><main>{"".join(parts)}</main>'
        f"<footer>taihu {html(__version__)}</footer>"
        f'<div id="tip" role="status" hidden></div><script>{script}</script></body></html>\n'
    )


def _section(section: Section) -> str:
    figures = "".join(draw_figure(figure, f"{section.key}-{place}") for place, figure in enumerate(section.figures))
    return (
        f'<section id="{section.key}" aria-labelledby="{section.key}-head"><h2 id="{section.key}-head">'
        f'{html(section.title)}</h2><div class="figures">{figures}</div></section>'
    )


def _missing(missing: Sequence[Missing]) -> str:
    rows = "".join(f"<dt>{html(each.what)}</dt><dd>{html(each.how)}</dd>" for each in missing)
    return (
        '<section id="missing" aria-labelledby="missing-head"><h2 id="missing-head">Not in this report</h2>'
        f'<dl class="missing">{rows}</dl></section>'
    )


def _tiles(run: Run) -> Iterator[str]:
    for name, value, about in figures_of(run):
        more = f'<dd class="about">{html(about)}</dd>' if about else ""
        yield f'<div class="tile"><dt>{html(name)}</dt><dd>{html(value)}</dd>{more}</div>'


def _settings(run: Run) -> Section | None:
    rows: list[tuple[str, str]] = []
    for table in _TABLES_OF_SCRIPTS if run.script else _TABLES:
        values = run.settings.get(table)
        if isinstance(values, Mapping):
            rows += [(f"{table}.{key}", _value(value)) for key, value in values.items()]
    told = ("path", "parameters_sha256", "saved")
    rows += [(name, _value(run.results[name])) for name in told if run.results.get(name)]
    if not rows:
        return None
    return Section("settings", "Settings", [plain("All settings of the job", ("key", "value"), rows, left=2)])


def _value(value: Any) -> str:
    return text(value) if isinstance(value, str) else text(str(value))
