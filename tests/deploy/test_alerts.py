"""The alert rules have tests; `make test-deploy` runs these by Prometheus' own tool."""

from __future__ import annotations

import yaml
from support.tests_deploy import DEPLOY

RULES = DEPLOY / "prometheus"


def test_every_alert_has_a_test_that_fires_it_and_one_that_does_not() -> None:
    rules = yaml.safe_load((RULES / "alerts.yaml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    tests = yaml.safe_load((RULES / "alerts_test.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test.get("alert_rule_test", ())]
    assert {case["alertname"] for case in cases if "exp_alerts" in case} == alerts
    assert {case["alertname"] for case in cases if "exp_alerts" not in case} == alerts
