"""The README is true: its table is the code's, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from experiments.table import table_names
from experiments.verdicts import headline
from rlvr_jax.cli import parser
from rlvr_jax.config import flatten, load_config, set_key
from rlvr_jax.estimators import catalogue_table

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), *sorted((ROOT / "experiments").glob("results/**/*.md"))]


def code_lines(page: Path) -> list[str]:
    blocks = re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.S | re.M)
    return [line.split("  ")[0].strip() for block in blocks for line in block.splitlines()]


def test_the_table_of_the_catalogue_is_the_codes():
    shown = (ROOT / "README.md").read_text().split("<!-- catalogue -->")[1].strip()
    assert shown == catalogue_table().strip(), "write catalogue_table() between the catalogue marks of README.md"


def test_the_result_is_the_measured_one():
    shown = (ROOT / "README.md").read_text().split("<!-- result -->")[1].strip()
    assert shown.count("|") > 20
    assert shown in (ROOT / "experiments" / "results" / "demo.md").read_text()


def test_the_verdicts_are_those_of_the_tables():
    shown = (ROOT / "README.md").read_text().split("<!-- tables -->")[1].strip()
    assert shown == headline(ROOT / "experiments" / "results" / "tables").strip(), "write headline() into README.md"
    assert shown.count("\n") > 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_exists(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in code_lines(page):
        words = line.split()
        if words[:1] == ["make"]:
            assert words[1] in targets or words[1].removeprefix("table-") in table_names(), f"{page}: {line}"
        if words[:1] == ["rlvr"]:
            options, rest = parser().parse_known_args([word.strip("'\"") for word in words[1:]])
            if getattr(options, "config", None):
                config = load_config(options.config)
                for item in rest:
                    assert item.startswith("--config."), f"{page}: {line}"
                    key, _, value = item.removeprefix("--config.").partition("=")
                    set_key(config, key, value)
                    assert key in flatten(config)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()) + re.findall(r'src="([^"]+)"', page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_tree_is_the_tree():
    """Every file of the package that the README's tree names exists, and every file of the package is in it."""
    text = (ROOT / "README.md").read_text()
    for path in sorted((ROOT / "rlvr_jax").iterdir()):
        name = path.name if path.suffix == ".py" else f"{path.name}/"
        if path.name not in ("__init__.py", "__pycache__"):
            assert re.search(rf"^\s*{re.escape(name)} ", text, re.M), f"README's tree lacks {name}"
