"""Causes each alert in a real run and waits until a real Prometheus says that it fires.

    python deploy/prometheus/cause_alerts.py          (needs `prometheus` in the PATH)

The rules are those of alerts.yaml with their times divided by 15 (5m becomes 20s, 1m becomes 4s), the targets are
given by their ports on this machine; everything else is as it is.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_RULES = Path(__file__).parent / "alerts.yaml"
_TIMES = {"5m": "20s", "2m": "8s", "1m": "4s"}
_PATIENCE_S = 90
_LINGER_S = 15


def main() -> int:
    """Returns 0 when every alert fired and none did before its cause."""
    causes: dict[str, Callable[[Run], None]] = {
        "TaihuStalled": lambda run: run.signal("worker-1", signal.SIGSTOP),
        "TaihuTargetDown": lambda run: run.signal("worker-1", signal.SIGSTOP),
        "TaihuWorkerLost": lambda run: run.signal("worker-1", signal.SIGKILL),
        "TaihuRunFailed": lambda run: run.signal("worker-2", signal.SIGKILL),
        "TaihuSlowRank": lambda run: run.throttle("worker-1"),
        "TaihuMemory": lambda run: run.narrow("server-0"),
    }
    chosen = sys.argv[1:] or list(causes)
    failed = [alert for alert in chosen if not _try(alert, causes[alert])]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} alerts fired", *failed)
    return int(bool(failed))


def _try(alert: str, cause: Callable[[Run], None]) -> bool:
    with tempfile.TemporaryDirectory() as name, Run(Path(name)).going_on() as run:
        run.wait_for(lambda: run.steps() > 100, "steps")
        if alert in run.firing():
            print(f"{alert}: fired without a cause")
            return False
        start = time.monotonic()
        cause(run)
        fired = run.wait_for(lambda: alert in run.firing(), alert)
        beside = sorted(set(run.firing()) - {alert})
        took = f"fired {time.monotonic() - start:.1f} s after its cause" if fired else "DID NOT FIRE"
        print(f"{alert}: {took}; {run.summary(alert)}; beside it: {', '.join(beside) or 'none'}", flush=True)
        return fired


class Run:
    """Two servers and three workers with Prometheus beside them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = dict.fromkeys(("server-0", "server-1", "worker-0", "worker-1", "worker-2"), 0)
        self._over = threading.Event()
        self._prometheus = _free_port()

    @contextmanager
    def going_on(self) -> Iterator[Run]:
        """Start all; whatever still runs is killed at the end."""
        try:
            coordinator = f"127.0.0.1:{_free_port()}"
            settings = (
                "train.steps=1000000",
                "train.evaluate=false",
                "cluster.threads=1",
                "cluster.lost_after_s=120",
            )
            sets = [text for setting in settings for text in ("--set", setting)]
            for name in self._ports:
                role, _, rank = name.partition("-")
                port = self._ports[name] = _free_port()
                place = ["--index" if role == "server" else "--rank", rank, "--coordinator", coordinator]
                metrics = ["--metrics-port", str(port), "--linger", str(_LINGER_S)]
                self._start(name, [sys.executable, "-P", "-m", "taihu", role, *sets, *place, *metrics])
            self._start_prometheus()
            yield self
        finally:
            self._over.set()
            for process in self._processes.values():
                process.kill()
                process.wait()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to one process."""
        self._processes[name].send_signal(number)

    def throttle(self, name: str) -> None:
        """Let one process run for a quarter of the time only, in slices that are short against a scrape."""

        def turn() -> None:
            while not self._over.is_set():
                self.signal(name, signal.SIGSTOP)
                time.sleep(0.06)
                self.signal(name, signal.SIGCONT)
                self._over.wait(0.02)

        threading.Thread(target=turn, daemon=True).start()

    def narrow(self, name: str) -> None:
        """Start one process anew in a control group whose limit it nearly fills.

        It sees the limit as a container does: as the file of its own control group, in a mount namespace.
        """
        limit = self._folder / "group" / "memory.max"
        limit.parent.mkdir()
        resident = self._query(f'process_resident_memory_bytes{{instance="127.0.0.1:{self._ports[name]}"}}')
        limit.write_text(f"{int(float(resident[0]['value'][1]) * 0.95)}\n")
        self.signal(name, signal.SIGKILL)
        self._processes[name].wait()
        role, _, rank = name.partition("-")
        place = ["--index", rank, "--coordinator", "127.0.0.1:1", "--bind", "127.0.0.1:0"]
        daemon = [sys.executable, "-P", "-m", "taihu", role, *place, "--metrics-port", str(self._ports[name])]
        mounted = f'mount --bind {limit.parent} /sys/fs/cgroup && exec "$@"'
        self._start(name, ["unshare", "--mount", "sh", "-c", mounted, "sh", *daemon])

    def steps(self) -> float:
        """Steps that all workers have made together."""
        return sum(float(row["value"][1]) for row in self._query('taihu_step{role="worker"}'))

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {row["metric"]["alertname"] for row in self._query('ALERTS{alertstate="firing"}')}

    def summary(self, alert: str) -> str:
        """The text of the alert for people."""
        alerts = self._get("alerts").get("alerts", [])
        texts = [each["annotations"]["summary"] for each in alerts if each["labels"]["alertname"] == alert]
        return texts[0] if texts else "no text"

    def wait_for(self, condition: Callable[[], bool], what: str) -> bool:
        """Whether it came in time."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                print(f"no {what} within {_PATIENCE_S} s")
                return False
            time.sleep(0.2)
        return True

    def _start(self, name: str, command: list[str]) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def _start_prometheus(self) -> None:
        rules = re.sub(r"\b([125]m)\b", lambda match: _TIMES[match[1]], _RULES.read_text())
        rules = rules.replace("mean20s", "mean5m")
        (self._folder / "alerts.yaml").write_text(rules)
        targets = json.dumps([f"127.0.0.1:{port}" for port in self._ports.values()])
        relabel = "relabel_configs: [{target_label: app, replacement: taihu}]"
        (self._folder / "prometheus.yaml").write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
            "rule_files: [alerts.yaml]\n"
            f"scrape_configs: [{{job_name: taihu, static_configs: [{{targets: {targets}}}], {relabel}}}]\n"
        )
        options = {"config.file": "prometheus.yaml", "storage.tsdb.path": "data"}
        files = [f"--{key}={self._folder / name}" for key, name in options.items()]
        self._start("prometheus", ["prometheus", *files, f"--web.listen-address=127.0.0.1:{self._prometheus}"])

    def _query(self, expression: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._get(f"query?query={urllib.parse.quote(expression)}").get("result", [])
        return rows

    def _get(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._prometheus}/api/v1/{path}", timeout=5) as answer:
                data: dict[str, Any] = json.load(answer)["data"]
                return data
        except OSError:
            return {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
