"""Every query of the dashboard, and of the alerts, names metrics that real daemons export."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from support.daemons import daemons, free_port, listening, page, wait_for
from support.tests_deploy import DEPLOY

from taihu.core.wire.base.address import split_address

Exported = dict[str, set[str]]

_RECORDED = re.compile(r"\btaihu:[a-z0-9_:]+")
_METRIC = re.compile(r"\b(?:taihu|process)_[a-z_]+\b")
_SELECTOR = re.compile(r"\b((?:taihu|process)_[a-z_]+)\{([^}]*)\}")
_LABEL = re.compile(r'([a-z_]+)\s*=~?\s*"')
_FROM_PROMETHEUS = {"job", "instance", "app"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exported]:
    """Names of samples, each with its labels, of a server, a worker and an agent that train with compression."""
    folder = tmp_path_factory.mktemp("daemons")
    sets = [f"checkpoint.dir={folder / 'checkpoints'}", "train.steps=1000000", "cluster.threads=1"]
    sets += ["compression.method=dlgs", "compression.refresh_every=2"]
    flags = [text for each in sets for text in ("--set", each)] + ["--servers", "1", "--workers", "2"]
    with daemons(folder) as start:
        server = start("taihu.ps_server", *flags, "--bind", "127.0.0.1:0")
        address, server_port = listening(server)
        port = free_port()
        start("taihu.worker", *flags, "--rank", "0", "--coordinator", address, "--metrics-port", str(port))
        start("taihu", "agent", *flags, "--coordinator", address)
        seen: Exported = {}

        def complete() -> bool:
            seen.update(_samples(page(port) + page(server_port)))
            return {
                "taihu_layer_threshold_drift_ratio",
                "taihu_threshold_drift_ratio_bucket",
                "taihu_member_step",
                "taihu_agent_work_seconds",
            } <= seen.keys()

        wait_for(complete, "the daemons did not train")
        yield seen


def _samples(text: str) -> Exported:
    seen: Exported = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            seen.setdefault(sample.name, set()).update(sample.labels)
    return seen


def _dashboard_queries() -> list[str]:
    document = json.loads((DEPLOY / "grafana" / "taihu.json").read_text())
    queries = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    assert len(queries) > 20
    return [*queries, *re.findall(r"label_values\((.*?),", json.dumps(document["templating"]))]


def _rules() -> list[dict[str, str]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def _check(query: str, exported: Exported, recorded: set[str]) -> None:
    assert set(_RECORDED.findall(query)) <= recorded, query
    names = set(_METRIC.findall(_RECORDED.sub("", query)))
    assert names or _RECORDED.search(query) or "up{" in query, query
    assert names <= exported.keys(), f"{query}: {names - exported.keys()} is exported by nobody"
    for name, selector in _SELECTOR.findall(query):
        labels = set(_LABEL.findall(selector)) - _FROM_PROMETHEUS
        assert labels <= exported[name], f"{query}: {name} has no label {labels - exported[name]}"


def test_every_query_of_the_dashboard_names_what_daemons_export(exported: Exported) -> None:
    for query in _dashboard_queries():
        _check(query, exported, set())


def test_every_rule_names_what_daemons_export(exported: Exported) -> None:
    recorded = {rule["record"] for rule in _rules() if "record" in rule}
    for rule in _rules():
        _check(rule["expr"], exported, recorded)


def test_a_query_of_an_unknown_metric_or_label_is_found(exported: Exported) -> None:
    for query in ("rate(taihu_steps_total[1m])", 'avg(taihu_loss{layer="1"})', "taihu:nothing:mean5m"):
        with pytest.raises(AssertionError):
            _check(query, exported, set())


def test_the_dashboard_is_what_its_source_makes() -> None:
    command = [sys.executable, str(DEPLOY / "grafana" / "dashboard.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run python deploy/grafana/dashboard.py and commit"


def test_the_panels_that_the_dashboard_is_for_are_there() -> None:
    titles = " ".join(
        panel["title"] for panel in json.loads((DEPLOY / "grafana" / "taihu.json").read_text())["panels"]
    )
    for wanted in ("Step time", "Bytes", "Density", "drift by layer", "Loss", "Skew", "aggregation"):
        assert wanted in titles


def test_prometheus_scrapes_the_port_and_services_of_compose() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    (discovery,) = scrape["scrape_configs"][0]["dns_sd_configs"]
    assert set(discovery["names"]) == {name for name, service in compose["services"].items() if "scale" in service}
    assert str(discovery["port"]) == compose["x-settings"]["TAIHU_METRICS_PORT"]
    linger_s = float(re.findall(r"\d+", compose["x-settings"]["TAIHU_LINGER"])[0])
    assert linger_s > 2 * float(scrape["global"]["scrape_interval"].removesuffix("s"))
    assert split_address(compose["x-settings"]["TAIHU_CLUSTER__COORDINATOR"].removeprefix("dns:"))[1] == 7070
    for service in ("server", "worker"):
        assert Path(compose["services"][service]["command"][1]) == Path("/etc/taihu/job.toml")
