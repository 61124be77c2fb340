"""A run in a few words and figures: what it was, how it ended, what it is known by."""

from __future__ import annotations

from collections.abc import Iterator

from taihu.core.base.words import counted
from taihu.core.traits.exchanges import EXCHANGES
from taihu.core.traits.methods import METHODS
from taihu.report.learning import tests_of
from taihu.report.run import Run
from taihu.report.values import BYTES, NUMBER, SECONDS, SHARE, items, known, number, text


def what_it_was(run: Run) -> str:
    """The job in one line: model and data, or the script, processes, precision, what is sent."""
    data = text(run.settings, "data", "name")
    model = run.script or f"{run.model}{f' on {data}' if data else ''}"
    batch = "" if run.script else run.fact("batch", "train", "batch")
    compression = run.fact("compression", "compression", "method")
    density = number(run.results, "density")
    method = METHODS.find(compression)
    selects = bool(compression) and (method is None or method.selects)
    sent = f" at {SHARE.text(density)}" if density is not None and selects else ""
    network = text(run.results, "network")
    precision = run.fact("precision", "train", "precision")
    # Usual scripts have parameters of any type, and exchange them in fp32.
    told = "" if run.script and precision == "fp32" else precision
    facts = [
        f"simulated on {network}" if network else "",
        model,
        _size(run),
        f"batch {batch} each" if batch else "",
        told,
        f"ZeRO {run.fact('zero', 'exchange', 'zero')}" if run.fact("zero", "exchange", "zero") else "",
        f"{compression}{sent}" if selects else "uncompressed" if compression else "",
    ]
    return " · ".join(fact for fact in facts if fact)


def _size(run: Run) -> str:
    """The number of processes; "" where it is not known."""
    workers = (
        number(run.results, "workers") or number(run.results, "nodes") or number(run.settings, "cluster", "workers")
    )
    servers = number(run.results, "servers") or number(run.settings, "cluster", "servers")
    if not workers:
        return ""
    kind = run.fact("exchange", "exchange", "kind")
    exchange = EXCHANGES.find(kind)
    if exchange is not None and not exchange.has_servers:
        return f"a ring of {counted(int(workers), 'worker')}"
    return ", ".join((*([counted(int(servers), "server")] if servers else []), counted(int(workers), "worker")))


def how_it_ended(run: Run) -> str:
    """The end of the run in one sentence."""
    results = run.results
    if run.is_simulated:
        return "A simulation: no step was taken."
    if not results:
        return f"There are no results: the run goes on, or it failed. Its tables end with step {len(run.steps)}."
    steps, total = number(results, "steps") or 0.0, number(results, "total_steps") or 0.0
    if results.get("stopped") is True:
        return f"Stopped after step {steps:,.0f} of {total:,.0f}: {text(results, 'stop_reason')}"
    return f"Finished after {steps:,.0f} steps."


def figures_of(run: Run) -> Iterator[tuple[str, str, str]]:
    """The figures that a run is known by: name, value, and what else there is to say."""
    results, tests = run.results, tests_of(run)
    for name in [name for name in tests.columns if name.startswith("test_") and name != "test_loss"][:2]:
        values = known(tests[name])
        if values:
            unit = SHARE if name == "test_accuracy" else NUMBER
            best = f"the most {unit.text(max(values))}" if name == "test_accuracy" else ""
            yield name.replace("_", " "), unit.text(values[-1]), best
    loss = number(results, "final_loss")
    if loss is not None:
        yield "final loss", NUMBER.text(loss), ""
    step = number(results, "seconds_per_step", "median") or number(results, "seconds_per_step")
    predicted = number(results, "predicted_seconds_per_step")
    if step is not None:
        yield "time per step", SECONDS.text(step), f"predicted {SECONDS.text(predicted)}" if predicted else ""
    stale, most = number(results, "staleness", "mean_steps"), number(results, "staleness", "most_steps")
    if stale is not None and most is not None:
        yield "staleness in steps", NUMBER.text(stale), f"the most {most:.0f}"
    for way in ("sent", "received"):
        count = number(results, f"bytes_{way}_per_step")
        if count is not None:
            yield f"{way} per step", BYTES.text(count), _whose(run)
    for name in ("efficiency", "speed_up"):
        value = number(results, name)
        if value is not None:
            yield name.replace("_", "-"), (SHARE if name == "efficiency" else NUMBER).text(value), ""


def _whose(run: Run) -> str:
    """The workers whose bytes the results tell: those of a run by hand are worker 0's."""
    workers, told = number(run.results, "workers"), len(items(run.results, "by_rank"))
    return "worker 0" if workers is None or 0 < told < workers else "all workers"
