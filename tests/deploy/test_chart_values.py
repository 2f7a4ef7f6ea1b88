"""The values of the Helm chart; `tests/packages/test_chart.py` renders it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/chart"


def check(**changed: Any) -> None:
    """Check the default values with some changed, as Helm does before it renders."""
    values = yaml.safe_load((CHART / "values.yaml").read_text()) | changed
    jsonschema.validate(values, json.loads((CHART / "values.schema.json").read_text()))


def test_the_defaults_fit_the_schema() -> None:
    check()


@pytest.mark.parametrize("wrong", [{"imgae": {}}, {"image": {"repository": ""}}, {"stateLimit": "four"}])
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check(**wrong)


def test_the_chart_has_the_version_of_the_program() -> None:
    version = re.findall(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert [chart["version"], chart["appVersion"]] == version * 2
