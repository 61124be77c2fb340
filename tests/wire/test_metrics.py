"""The /metrics page: names by the rules of Prometheus, read over real HTTP."""

from __future__ import annotations

import gc
import selectors
import socket
import socketserver
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable
from http.client import HTTPConnection

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from taihu.core.base.errors import ConfigError
from taihu.core.wire.serving.metrics import SECONDS, MetricsPage, ServerMetrics, WorkerMetrics

UNITS = ("_seconds", "_bytes", "_total", "_ratio")
DIMENSIONLESS = {
    "taihu_step",
    "taihu_last_step",
    "taihu_loss",
    "taihu_path",
    "taihu_test_score",
    "taihu_connected_workers",
}
ROLES: list[tuple[str, Callable[[int], WorkerMetrics | ServerMetrics]]] = [
    ("worker", WorkerMetrics),
    ("server", ServerMetrics),
]


def fetch(port: int, path: str = "/metrics") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def families_of(registry: CollectorRegistry) -> dict[str, Metric]:
    """The page's metrics by name, as Prometheus would read them."""
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(families: dict[str, Metric]) -> dict[str, float]:
    return {s.name: s.value for family in families.values() for s in family.samples if "le" not in s.labels}


@pytest.mark.parametrize(("role", "metrics"), ROLES)
def test_every_name_has_our_prefix_and_a_base_unit(
    role: str, metrics: Callable[[int], WorkerMetrics | ServerMetrics]
) -> None:
    families = families_of(metrics(3).registry)
    own = {name: family for name, family in families.items() if not name.startswith("process_")}
    totals = {f"{name}_total" for name, family in own.items() if family.type == "counter"}
    assert len(own) > 5
    for name, family in own.items():
        assert name.startswith("taihu_")
        # prometheus-client writes beside a series when it began
        exported = f"{name}_total" if family.type == "counter" else name.removesuffix("_created")
        assert exported in DIMENSIONLESS or exported.endswith(UNITS) or f"{exported}_total" in totals


@pytest.mark.parametrize(("role", "metrics"), ROLES)
def test_every_metric_says_what_it_is_and_whose(
    role: str, metrics: Callable[[int], WorkerMetrics | ServerMetrics]
) -> None:
    for name, family in families_of(metrics(3).registry).items():
        if not name.startswith("taihu_"):
            continue
        assert family.documentation.endswith("."), name
        for sample in family.samples:
            assert {key: value for key, value in sample.labels.items() if key != "le"} == {"role": role, "rank": "3"}


def test_thresholds_are_read_by_layer_when_the_page_is() -> None:
    metrics, drifts = WorkerMetrics(3), dict[str, float]()
    metrics.show_thresholds(drifts.items)
    name = "taihu_layer_threshold_drift_ratio"
    assert families_of(metrics.registry)[name].samples == []
    drifts |= {"fc1": 0.25, "conv1 to conv3": 0.5}
    seen = families_of(metrics.registry)[name].samples
    assert [sample.labels for sample in seen] == [{"role": "worker", "rank": "3", "layer": each} for each in drifts]
    assert [sample.value for sample in seen] == list(drifts.values())


class _Log:
    """The thresholds of one generation of a run's members."""

    def last_drifts(self) -> list[tuple[str, float]]:
        return [("fc1", 0.5)]


def test_thresholds_of_former_generations_are_neither_told_nor_kept() -> None:
    metrics, former = WorkerMetrics(3), _Log()
    forgotten = weakref.ref(former)
    metrics.show_thresholds(former.last_drifts)
    metrics.show_thresholds({"conv1": 0.25}.items)
    del former
    gc.collect()
    assert forgotten() is None
    seen = families_of(metrics.registry)["taihu_layer_threshold_drift_ratio"].samples
    assert [(sample.labels["layer"], sample.value) for sample in seen] == [("conv1", 0.25)]


def test_both_roles_say_the_same_of_what_both_export() -> None:
    worker, server = families_of(WorkerMetrics(0).registry), families_of(ServerMetrics(0).registry)
    for name in worker.keys() & server.keys():
        assert worker[name].type == server[name].type


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 100), max_size=20), st.integers(0, 10**12), st.floats(-1e6, 1e6))
def test_the_page_shows_what_was_measured(times: list[float], sent: int, loss: float) -> None:
    metrics = WorkerMetrics(0)
    for seconds in times:
        metrics.wait_seconds.observe(seconds)
    metrics.sent_bytes.inc(sent)
    metrics.loss.set(loss)
    families = families_of(metrics.registry)
    shown = samples(families)
    assert shown["taihu_wait_seconds_count"] == len(times)
    assert shown["taihu_wait_seconds_sum"] == pytest.approx(sum(times))
    assert shown["taihu_sent_bytes_total"] == sent
    assert shown["taihu_loss"] == loss
    buckets = {s.labels["le"]: s.value for s in families["taihu_wait_seconds"].samples if "le" in s.labels}
    for bound, below in buckets.items():
        assert below == sum(seconds <= float(bound) for seconds in times)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 100) | st.sampled_from(SECONDS), max_size=20), st.integers(0, 10**12))
def test_updates_of_a_server_are_counted_as_a_histogram_counts_them(times: list[float], received: int) -> None:
    metrics, registry = ServerMetrics(0), CollectorRegistry()
    oracle = Histogram("taihu_update_seconds", "An oracle.", ("role", "rank"), registry=registry, buckets=SECONDS)
    counts = metrics.frames
    counts.received_bytes = received
    for seconds in times:
        oracle.labels(role="server", rank="0").observe(seconds)
        counts.updates[bisect_left(SECONDS, seconds)] += 1
        counts.update_seconds += seconds
    oracle.labels(role="server", rank="0")
    families = families_of(metrics.registry)
    name = "taihu_update_seconds"
    seen = {(s.name, s.labels.get("le")): s.value for s in families[name].samples}
    expected = {(s.name, s.labels.get("le")): s.value for s in families_of(registry)[name].samples}
    assert seen == pytest.approx(expected)
    assert samples(families)["taihu_received_bytes_total"] == received


def test_every_score_of_a_test_has_its_label() -> None:
    metrics = WorkerMetrics(2)
    metrics.tested(0.5, {"rmse": 0.25, "r2": -1.0})
    families = families_of(metrics.registry)
    shown = {s.labels["metric"]: (s.labels["rank"], s.value) for s in families["taihu_test_score"].samples}
    assert shown == {"loss": ("2", 0.5), "rmse": ("2", 0.25), "r2": ("2", -1.0)}
    assert samples(families)["taihu_test_accuracy_ratio"] == 0
    metrics.tested(0.5, {"accuracy": 0.75})
    assert samples(families_of(metrics.registry))["taihu_test_accuracy_ratio"] == 0.75


def test_metrics_of_two_daemons_in_one_process_are_apart() -> None:
    first, second = WorkerMetrics(0), WorkerMetrics(0)
    first.samples.inc(5)
    assert samples(families_of(first.registry))["taihu_samples_total"] == 5
    assert samples(families_of(second.registry))["taihu_samples_total"] == 0


@pytest.mark.parametrize(("role", "metrics"), ROLES)
def test_the_page_over_http_is_the_registry(
    role: str, metrics: Callable[[int], WorkerMetrics | ServerMetrics]
) -> None:
    measured = metrics(7)
    if isinstance(measured, ServerMetrics):
        measured.frames.sent_bytes, measured.frames.step = 12345, 17
    else:
        measured.sent_bytes.inc(12345)
        measured.step.set(17)
    with MetricsPage(measured.registry, 0, "127.0.0.1") as page:
        status, text = fetch(page.port)
    assert status == 200
    shown = {family.name: family for family in text_string_to_metric_families(text)}
    assert shown.keys() == families_of(measured.registry).keys()
    assert samples(shown)["taihu_sent_bytes_total"] == 12345
    assert samples(shown)["taihu_step"] == 17
    assert f'rank="7",role="{role}"' in text


def test_the_port_is_free_again_when_the_page_is_closed() -> None:
    registry = ServerMetrics(0).registry
    with MetricsPage(registry, 0, "127.0.0.1") as page:
        port = page.port
        assert port > 0
        assert fetch(port)[0] == 200
    with pytest.raises(ConnectionRefusedError):
        fetch(port)
    with MetricsPage(registry, port, "127.0.0.1") as page:
        assert page.port == port


def test_closing_a_page_waits_for_no_look_of_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    class Patient(selectors.PollSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            return super().select(None)

    monkeypatch.setattr(socketserver, "_ServerSelector", Patient)
    page = MetricsPage(ServerMetrics(0).registry, 0, "127.0.0.1")
    assert fetch(page.port)[0] == 200
    closing = threading.Thread(target=page.close, daemon=True)
    closing.start()
    closing.join(120)
    assert not closing.is_alive()


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"metrics port {port}.*in use.*--metrics-port") as caught:
            MetricsPage(ServerMetrics(0).registry, port, "127.0.0.1")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("port", [-1, 65536, 70000, 2**40])
def test_a_port_out_of_range_is_named(port: int) -> None:
    with pytest.raises(ConfigError, match=rf"metrics port {port}: expected a number from 0 to 65535"):
        MetricsPage(ServerMetrics(0).registry, port, "127.0.0.1")
