"""What the documents say is so: the reference is fresh, messages and links exist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import slrt_dask
from slrt_dask.optim.stopping import StopReason

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "notebooks" / "guide.md"
PAGES = ("README.md", "CHANGELOG.md", "notebooks/guide.md", "notebooks/api.md")


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def script(path):
    """A script as a module, without its main."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def anchors(page):
    """What links to a page's headings may end in, as GitHub makes it of them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_reference_is_what_the_docstrings_say(tmp_path, monkeypatch, capsys):
    api = script(ROOT / ".ci" / "api.py")
    assert api.main(["--check"]) == 0, "run python .ci/api.py"
    stale = tmp_path / "api.md"
    stale.write_text(text_of("notebooks/api.md").replace("complete", "finish", 1))
    monkeypatch.setattr(api, "PAGE", stale)
    assert api.main(["--check"]) == 1
    assert "stale" in capsys.readouterr().err
    assert api.main([]) == 0
    assert stale.read_text(encoding="utf-8") == text_of("notebooks/api.md")


def test_every_public_name_has_a_heading_in_the_reference():
    headings = re.findall(r"^### (\w+)$", text_of("notebooks/api.md"), flags=re.MULTILINE)
    assert set(slrt_dask.__all__) <= set(headings)


def test_messages_in_the_guide_are_those_of_the_package():
    table = text_of("notebooks/guide.md").split("## Messages")[1]
    quoted = re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE)
    assert len(quoted) >= 20
    # Strings that stand one after the other are one.
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "slrt_dask").rglob("*.py")]
    joined = [re.sub(r'"\s*\n\s*(?:\+ )?f?"', "", source) for source in sources]
    assert [words for words in quoted if not any(words in source for source in joined)] == []


def test_the_guide_explains_every_reason_to_stop():
    rows = re.findall(r"^\| ([A-Z][^|]*\.) \|", text_of("notebooks/guide.md"), flags=re.MULTILINE)
    assert set(rows) == {reason.value for reason in StopReason}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        path, _, anchor = target.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        place = (ROOT / page).parent / path if path else ROOT / page
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    assert broken == []


def test_the_readme_is_a_front_door():
    assert len(text_of("README.md").splitlines()) <= 230
    readme = script(ROOT / ".ci" / "readme.py")
    for name in ("demo", "example", "constraints", "test"):
        assert readme.marked_block(text_of("README.md"), name)


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {slrt_dask.__version__}\n" in text_of("CITATION.cff")
    assert f"\n## [{slrt_dask.__version__}]" in text_of("CHANGELOG.md")


def test_the_changelog_names_every_command():
    from slrt_dask.cli import main

    named = re.search(r"`slrt-dask`: `([^`]+)`", text_of("CHANGELOG.md")).group(1)
    assert sorted(named.split()) == sorted(main.commands)


def test_extras_in_the_documents_exist():
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    named = re.findall(r"'\.\[([\w,]+)\]'", text_of("README.md") + text_of("pipelines/README.md"))
    assert named
    assert {extra for group in named for extra in group.split(",")} <= set(extras)


def test_the_sizes_of_clusters_are_what_the_planner_says():
    sizing = script(ROOT / "pipelines" / "bench" / "sizing.py")
    for observed in sizing.SHAPES:
        for ranks in sizing.RANKS:
            assert sizing.row(observed, ranks, 4, 2) in text_of("notebooks/guide.md")


def test_a_wheel_holds_the_whole_package_and_nothing_else(tmp_path):
    pytest.importorskip("hatchling")
    program = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    made = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = zipfile.ZipFile(tmp_path / made.stdout.split()[-1]).namelist()
    held = {name for name in names if ".dist-info/" not in name}
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "slrt_dask").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == package
    assert {"slrt_dask/py.typed", "slrt_dask/show/templates/report.html.j2"} <= held
    assert any(name.endswith("licenses/LICENSE") for name in names)
