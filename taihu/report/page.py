"""The whole page: what a run was, its figures, and what it has none of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any, Final

import taihu
from taihu.report.charts import Figure, Missing, Section, Table
from taihu.report.drawing import draw_figure, table_html
from taihu.report.learning import learning, tests_of
from taihu.report.members import members
from taihu.report.run import Run
from taihu.report.times import Planned, planned_of, times
from taihu.report.traffic import traffic
from taihu.report.values import BYTES, NUMBER, SECONDS, SHARE, known, number, text

__all__ = ["page_of", "sections_of"]

_TABLES: Final = ("model", "data", "train", "optimizer", "exchange", "compression", "cluster")


def page_of(run: Run) -> str:
    """The report of a run as one HTML page that needs nothing else."""
    planned = planned_of(run)
    sections, missing = sections_of(run, planned)
    parts = [_section(section) for section in sections]
    links = "".join(f'<li><a href="#{section.key}">{escape(section.title)}</a></li>' for section in sections)
    if missing:
        parts.append(_missing(missing))
        links += '<li><a href="#missing">Not in this report</a></li>'
    head = (
        f"<h1>{escape(_shown(run.name))}</h1><p>{escape(_what(run))}</p><p>{escape(_how_it_ended(run))}</p>"
        f'<dl class="tiles">{"".join(_tiles(run))}</dl><nav aria-label="Sections"><ul>{links}</ul></nav>'
    )
    return _document(run.name, head, "".join(parts))


def sections_of(run: Run, planned: Planned | None) -> tuple[list[Section], list[Missing]]:
    """All sections that there is something in, and what is missing."""
    learned = learning(run)
    found: list[Section | None] = []
    missing: list[Missing] = []
    if isinstance(learned, Section):
        found.append(learned)
    else:
        missing.append(learned)
    for section, absent in (times(run, planned), traffic(run), members(run)):
        found.append(section)
        missing += absent
    found.append(_settings(run))
    return [section for section in found if section is not None], missing


def _document(title: str, head: str, body: str) -> str:
    style, script = (files("taihu.report").joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="generator" content="taihu {escape(taihu.__version__)}">'
        f"<title>{escape(_shown(title))} – taihu report</title><style>{style}</style></head>"
        f'<body><header>{head}</header><main>{body}</main><footer>taihu {escape(taihu.__version__)}</footer>'
        f'<div id="tip" role="status" hidden></div><script>{script}</script></body></html>\n'
    )


def _shown(name: str) -> str:
    return text(name)


def _section(section: Section) -> str:
    figures = "".join(draw_figure(figure, f"{section.key}-{place}") for place, figure in enumerate(section.figures))
    return (
        f'<section id="{section.key}" aria-labelledby="{section.key}-head"><h2 id="{section.key}-head">'
        f'{escape(section.title)}</h2><div class="figures">{figures}</div></section>'
    )


def _missing(missing: Sequence[Missing]) -> str:
    rows = "".join(f"<dt>{escape(each.what)}</dt><dd>{escape(each.how)}</dd>" for each in missing)
    return (
        '<section id="missing" aria-labelledby="missing-head"><h2 id="missing-head">Not in this report</h2>'
        f'<dl class="missing">{rows}</dl></section>'
    )


def _what(run: Run) -> str:
    """The job in one line."""
    data = text(run.settings, "data", "name")
    model = f"{run.model}{f' on {data}' if data else ''}"
    workers = run.fact("workers", "cluster", "workers") or run.fact("nodes")
    servers = run.fact("servers", "cluster", "servers")
    is_ring = run.fact("exchange", "exchange", "kind") == "ring"
    with_servers = f"{servers} server{'' if servers == '1' else 's'}, " if servers and not is_ring else ""
    size = f"{with_servers}{workers} worker{'' if workers == '1' else 's'}{' in a ring' if is_ring else ''}" if workers else ""
    batch = run.fact("batch", "train", "batch")
    compression = run.fact("compression", "compression", "method")
    density = number(run.results, "density")
    sent = f" at {SHARE.text(density)}" if density is not None and compression not in ("", "none") else ""
    network = text(run.results, "network")
    facts = [
        f"simulated on {network}" if network else "",
        model,
        size,
        f"batch {batch} each" if batch else "",
        run.fact("precision", "train", "precision"),
        f"ZeRO {run.fact('zero', 'exchange', 'zero')}" if run.fact("zero", "exchange", "zero") else "",
        f"{compression}{sent}" if compression not in ("", "none") else "uncompressed" if compression else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _how_it_ended(run: Run) -> str:
    results = run.results
    if run.is_simulated:
        return "A simulation: no step was taken."
    if not results:
        return f"There are no results: the run goes on, or it failed. Its tables end with step {len(run.steps)}."
    steps, total = number(results, "steps") or 0.0, number(results, "total_steps") or 0.0
    if results.get("stopped") is True:
        return f"Stopped after step {steps:,.0f} of {total:,.0f}: {text(results, 'stop_reason')}"
    return f"Finished after {steps:,.0f} steps."


def _tiles(run: Run) -> Iterator[str]:
    for name, value, about in _figures_of(run):
        more = f"<dd class=\"about\">{escape(about)}</dd>" if about else ""
        yield f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(value)}</dd>{more}</div>'


def _figures_of(run: Run) -> Iterator[tuple[str, str, str]]:
    """The figures that a run is known by: name, value, and what else there is to say."""
    results, tests = run.results, tests_of(run)
    for name in [name for name in tests.columns if name.startswith("test_") and name != "test_loss"][:2]:
        values = known(tests[name])
        if values:
            unit = SHARE if name == "test_accuracy" else NUMBER
            yield name.replace("_", " "), unit.text(values[-1]), f"the most {unit.text(max(values))}" if name == "test_accuracy" else ""
    loss = number(results, "final_loss")
    if loss is not None:
        yield "final loss", NUMBER.text(loss), ""
    step = number(results, "seconds_per_step", "median") or number(results, "seconds_per_step")
    predicted = number(results, "predicted_seconds_per_step")
    if step is not None:
        yield "time per step", SECONDS.text(step), f"predicted {SECONDS.text(predicted)}" if predicted else ""
    for way in ("sent", "received"):
        count = number(results, f"bytes_{way}_per_step")
        if count is not None:
            yield f"{way} per step", BYTES.text(count), "all workers" if "workers" in results else "worker 0"
    for name in ("efficiency", "speed_up"):
        value = number(results, name)
        if value is not None:
            yield name.replace("_", "-"), (SHARE if name == "efficiency" else NUMBER).text(value), ""


def _settings(run: Run) -> Section | None:
    rows: list[tuple[str, str]] = []
    for table in _TABLES:
        values = run.settings.get(table)
        if isinstance(values, Mapping):
            rows += [(f"{table}.{key}", _value(value)) for key, value in values.items()]
    rows += [(name, _value(run.results[name])) for name in ("path", "parameters_sha256", "saved") if run.results.get(name)]
    if not rows:
        return None
    return Section("settings", "Settings", [Figure("All settings of the job", Table(("key", "value"), tuple(rows), 2))])


def _value(value: Any) -> str:
    return text(value) if isinstance(value, str) else text(str(value))
