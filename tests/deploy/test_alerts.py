"""The alert rules, by the unit tests of Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess

import yaml
from tests_deploy import DEPLOY

RULES = DEPLOY / "prometheus"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("promtool")
    assert tool is not None, "promtool is missing: apt-get install prometheus"
    return subprocess.run([tool, *arguments], cwd=RULES, capture_output=True, text=True, timeout=60, check=False)


def test_every_alert_fires_when_it_should_and_not_before() -> None:
    done = promtool("test", "rules", "alerts_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scrape_configuration_and_rules_are_valid() -> None:
    done = promtool("check", "config", "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_that_fires_it_and_one_that_does_not() -> None:
    rules = yaml.safe_load((RULES / "alerts.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    tests = yaml.safe_load((RULES / "alerts_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    assert {case["alertname"] for case in cases if "exp_alerts" in case} == alerts
    assert {case["alertname"] for case in cases if "exp_alerts" not in case} == alerts
