"""Prometheus metrics of a daemon: names, labels and the /metrics page.

Every daemon owns a `Metrics` with its own registry; nothing is registered globally.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from statistics import fmean
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from typing_extensions import override

from taihu.core.base.errors import ConfigError
from taihu.core.model.scores import ACCURACY
from taihu.core.process.entry import InterruptedRunError
from taihu.core.process.memory.limit import memory_limit_bytes
from taihu.core.security.security import Refusals
from taihu.core.system.clocks import sleep
from taihu.core.system.sockets import SHUT_RDWR, has_dualstack_ipv6
from taihu.core.system.threads import Lock, Thread
from taihu.core.wire.serving.health import Health
from taihu.core.wire.serving.page_server import serve_page
from taihu.core.wire.serving.staleness import StalenessCounts

_RECENT_UPDATES = 100
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Upper bounds of the buckets of all histograms of seconds."""


class WorkerMetrics:
    """Metrics of a worker, labelled with its rank.

    Args:
        rank: of the worker.
        is_read: whether there is a page of them; if not, nothing is counted in every step for nobody.
    """

    def __init__(self, rank: int, *, is_read: bool = True) -> None:
        self.is_read = is_read
        labels = {"role": "worker", "rank": str(rank)}
        self.registry = _registry(labels)
        self.exported = Exported(self.registry)
        self.step_seconds = _histogram(self.registry, "taihu_step_seconds", "Time of one step.", labels)
        self.compute_seconds = _histogram(
            self.registry, "taihu_compute_seconds", "Time of forward and backward in a step.", labels
        )
        self.compress_seconds = _histogram(
            self.registry, "taihu_compress_seconds", "Time of selecting and packing gradients in a step.", labels
        )
        self.compress_wait_seconds = _histogram(
            self.registry,
            "taihu_compress_wait_seconds",
            "Time of a step that the compute thread waited for selecting and packing.",
            labels,
        )
        self.selected_ratio = _gauge(
            self.registry, "taihu_selected_ratio", "Share of the gradient that the last step sent.", labels
        )
        self.loss_scale = _gauge(
            self.registry,
            "taihu_loss_scale_ratio",
            "What the loss was multiplied by in the last step (fp16).",
            labels,
        )
        self.skipped_steps = _counter(
            self.registry, "taihu_skipped_steps", "Steps that changed nothing: gradients did not fit (fp16).", labels
        )
        self.threshold_drift = _histogram(
            self.registry,
            "taihu_threshold_drift_ratio",
            "Relative change of a threshold when it was made anew.",
            labels,
        )
        self.exchange_seconds = _histogram(
            self.registry, "taihu_exchange_seconds", "From the first push to the last pull of a step.", labels
        )
        self.wait_seconds = _histogram(
            self.registry, "taihu_wait_seconds", "Time of a step that the compute thread waited for pulls.", labels
        )
        self.sent_bytes = _counter(self.registry, "taihu_sent_bytes", "Bytes pushed to servers.", labels)
        self.received_bytes = _counter(self.registry, "taihu_received_bytes", "Bytes pulled from servers.", labels)
        self.samples = _counter(self.registry, "taihu_samples", "Training samples seen.", labels)
        self.step = _gauge(self.registry, "taihu_step", "Last completed step.", labels)
        self.last_step = _gauge(self.registry, "taihu_last_step", "Step that the run ends with.", labels)
        self.loss = _gauge(self.registry, "taihu_loss", "Training loss of the last step.", labels)
        self.predicted_seconds = _gauge(
            self.registry, "taihu_predicted_step_seconds", "Time of one step that the plan predicts.", labels
        )
        self.test_accuracy = _gauge(
            self.registry, "taihu_test_accuracy_ratio", "Accuracy of the last evaluation on the test set.", labels
        )
        self._test_score = Gauge(
            "taihu_test_score",
            "Scores of the last evaluation on the test set, in their own units: loss, accuracy, rmse, mae, r2.",
            (*labels, "metric"),
            registry=self.registry,
        )
        self._path = Gauge(
            "taihu_path", "1 for what values take: same-host, tcp or grpc.", (*labels, "path"), registry=self.registry
        )
        self._labels = labels

    def travels(self, path: str) -> None:
        """Values take `path` and no other."""
        self._path.clear()
        self._path.labels(**self._labels, path=path).set(1)

    def show_thresholds(self, last_drifts: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """Export what `last_drifts` returns when the page is read: each layer, or group of them, and its drift.

        It takes the place of a former one, which is forgotten.
        """
        self.exported.put(_ThresholdDrifts(self._labels, last_drifts))

    def tested(self, loss: float, metrics: Mapping[str, float]) -> None:
        """The model was tested; `metrics` are few, and always the same ones."""
        if ACCURACY in metrics:
            self.test_accuracy.set(metrics[ACCURACY])
        for name, value in {"loss": loss, **metrics}.items():
            self._test_score.labels(**self._labels, metric=name).set(value)


class _ThresholdDrifts(Collector):
    """Drift by layer, looked up when somebody reads: nothing is counted while gradients are compressed."""

    def __init__(self, labels: Mapping[str, str], last_drifts: Callable[[], Iterable[tuple[str, float]]]) -> None:
        self._labels = labels
        self._last_drifts = last_drifts

    @override
    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "taihu_layer_threshold_drift_ratio",
            "Relative change of a layer's threshold when it was last made anew.",
            labels=(*self._labels, "layer"),
        )
        for name, drift in self._last_drifts():
            family.add_metric((*self._labels.values(), name), drift)
        return [family]


class RefusedCalls(Collector):
    """Calls and handshakes that `refusals` has counted, looked up when somebody reads."""

    def __init__(self, role: str, rank: int, refusals: Refusals) -> None:
        self._labels = (role, str(rank))
        self._refusals = refusals

    @override
    def collect(self) -> Iterable[Metric]:
        names = ("role", "rank", "method", "reason")
        refused = CounterMetricFamily("taihu_refused_calls", "Calls that were not let in.", labels=names)
        for (method, reason), count in sorted(self._refusals.calls.items()):
            refused.add_metric((*self._labels, method, reason), count)
        counts = {
            "taihu_tls_handshakes": ("Handshakes of TLS that were begun.", self._refusals.handshakes),
            "taihu_refused_handshakes": ("Handshakes of TLS that led to no call.", self._refusals.refused_handshakes),
        }
        families = [CounterMetricFamily(name, text, labels=names[:2]) for name, (text, _) in counts.items()]
        for family, (_, count) in zip(families, counts.values(), strict=True):
            family.add_metric(self._labels, count)
        return [refused, *families]


class FrameCounts(Collector):
    """Plain numbers that each frame of a server adds to, under `lock`; they become samples when somebody reads.

    Attributes:
        received_bytes, sent_bytes: of all frames so far.
        step: the highest one of which a frame was updated.
        updates: the number of updates that took at most each of `SECONDS`, and more than the one before; then longer.
        update_seconds: of all updates together.
        recent: seconds of the last updates.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self.lock = Lock()
        self.received_bytes = self.sent_bytes = self.step = 0
        self.updates = [0] * (len(SECONDS) + 1)
        self.update_seconds = 0.0
        self.recent: deque[float] = deque(maxlen=_RECENT_UPDATES)

    @override
    def collect(self) -> Iterator[Metric]:
        names, values = tuple(self._labels), tuple(self._labels.values())
        with self.lock:
            counts = list(accumulate(self.updates))
            seconds, received, sent, step = self.update_seconds, self.received_bytes, self.sent_bytes, self.step
        updates = HistogramMetricFamily(
            "taihu_update_seconds", "Summing and updating one complete frame.", labels=names
        )
        bounds = map(floatToGoString, (*SECONDS, math.inf))
        updates.add_metric(values, list(zip(bounds, counts, strict=True)), seconds)
        yield updates
        for name, text, count in (
            ("taihu_received_bytes", "Bytes pushed by workers.", received),
            ("taihu_sent_bytes", "Bytes pulled by workers.", sent),
        ):
            counter = CounterMetricFamily(name, text, labels=names)
            counter.add_metric(values, count)
            yield counter
        gauge = GaugeMetricFamily("taihu_step", "Highest step of which a frame was updated.", labels=names)
        gauge.add_metric(values, step)
        yield gauge


class ServerMetrics:
    """Metrics of a server, labelled with its index; `frames` are those that each frame changes.

    `staleness` is exported where a step does not wait for all workers.
    """

    def __init__(self, index: int) -> None:
        labels = {"role": "server", "rank": str(index)}
        self.registry = _registry(labels)
        self.exported = Exported(self.registry)
        self.frames = FrameCounts(labels)
        self.registry.register(self.frames)
        self.staleness = StalenessCounts(labels)
        self.rejected_frames = _counter(
            self.registry, "taihu_rejected_frames", "Frames refused because they were malformed or stale.", labels
        )
        self.duplicate_frames = _counter(
            self.registry, "taihu_duplicate_frames", "Frames that had arrived before and changed nothing.", labels
        )
        self.state_bytes = _gauge(self.registry, "taihu_state_bytes", "Parameters and optimizer state held.", labels)
        self.workers = _gauge(self.registry, "taihu_connected_workers", "Workers with an open exchange.", labels)

    @property
    def mean_update_seconds(self) -> float:
        """Over the recent frames; 0 before the first one."""
        with self.frames.lock:
            recent = tuple(self.frames.recent)
        return fmean(recent) if recent else 0.0


class MetricsPage:
    """The /metrics page of a registry, which tells a process's health too; a context manager that closes the port.

    It lingers for `linger_s` at the end, so that a scraper sees how the run ended; SIGTERM ends that, and who was
    told to end before sets `lingers` to False. `refusals` are told of who speaks TLS to it.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        port: int,
        host: str = "",
        *,
        linger_s: float = 0.0,
        health: Health | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self._linger_s = linger_s
        self.lingers = True
        if not 0 <= port <= 65535:
            raise ConfigError(f"metrics port {port}: expected a number from 0 to 65535")
        everywhere = "::" if has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104
        try:
            self._server, self._thread = serve_page(
                registry, health or Health(), host or everywhere, port, refusals or Refusals()
            )
        except OSError as error:
            raise ConfigError(
                f"metrics port {port}: {error.strerror or error}; "
                "choose another with --metrics-port, 0 takes a free one"
            ) from None
        self.port = int(self._server.server_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.lingers and not isinstance(value, (InterruptedRunError, KeyboardInterrupt)):
            with suppress(InterruptedRunError, KeyboardInterrupt):
                sleep(self._linger_s)
        self.close()

    def close(self) -> None:
        """Close the port at once."""
        ending = Thread(target=self._server.shutdown, name="metrics-end")
        ending.start()
        # The server looks twice a second whether it is to end, unless its port tells it something.
        with suppress(OSError):
            self._server.socket.shutdown(SHUT_RDWR)
        ending.join()
        self._server.server_close()
        self._thread.join()


def _registry(labels: dict[str, str]) -> CollectorRegistry:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    text = "Memory that this process may take: its control group's limit, or all of the machine."
    _gauge(registry, "taihu_memory_limit_bytes", text, labels).set(memory_limit_bytes())
    return registry


def _histogram(registry: CollectorRegistry, name: str, text: str, labels: dict[str, str]) -> Histogram:
    return Histogram(name, text, tuple(labels), registry=registry, buckets=SECONDS).labels(**labels)


def _counter(registry: CollectorRegistry, name: str, text: str, labels: dict[str, str]) -> Counter:
    return Counter(name, text, tuple(labels), registry=registry).labels(**labels)


def _gauge(registry: CollectorRegistry, name: str, text: str, labels: dict[str, str]) -> Gauge:
    return Gauge(name, text, tuple(labels), registry=registry).labels(**labels)


def modelled_layers(rank: int, seconds: Mapping[tuple[str, str], float]) -> Collector:
    """A worker's modelled compute for its page: the seconds of each (layer, direction) in a step."""
    gauge = Gauge(
        "taihu_modelled_layer_seconds",
        "Time of a layer in a step on the processor that is modelled; nothing that was measured.",
        ("role", "rank", "layer", "direction"),
        registry=None,
    )
    for (layer, direction), each in seconds.items():
        gauge.labels("worker", str(rank), layer, direction).set(each)
    return gauge


class Exported:
    """Collectors on a page, one of each kind; it stays until another one takes its place."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._by_kind: dict[type[Collector], Collector] = {}

    def put(self, collector: Collector) -> None:
        """Have the page tell what `collector` does, in the place of the former one of its kind."""
        former = self._by_kind.pop(type(collector), None)
        if former is not None:
            self._registry.unregister(former)
        self._registry.register(collector)
        self._by_kind[type(collector)] = collector
