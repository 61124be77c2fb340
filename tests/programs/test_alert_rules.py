"""The alert rules, by the unit tests of Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess

from support.tests_deploy import DEPLOY

RULES = DEPLOY / "prometheus"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    tool = shutil.which("promtool")
    assert tool is not None, "promtool is missing: apt-get install prometheus (make test-deploy needs it)"
    return subprocess.run([tool, *arguments], cwd=RULES, capture_output=True, text=True, timeout=60, check=False)


def test_every_alert_fires_when_it_should_and_not_before() -> None:
    done = promtool("test", "rules", "alerts_test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_scrape_configuration_and_rules_are_valid() -> None:
    done = promtool("check", "config", "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
