"""A page about a run by a command."""

from __future__ import annotations


def test_report_writes_a_page_and_says_where(run_command, fitted, tmp_path):
    page = tmp_path / "first.html"
    said = run_command("report", fitted[0], "-o", page, "--modes", "0,2")
    assert said.exit_code == 0, said.stderr
    assert said.stdout.startswith(f"{page}: ")
    assert "(mode 0 × mode 2)" in page.read_text(encoding="utf-8")
    again = run_command("report", fitted[0], "-o", page)
    assert again.exit_code == 1
    assert f"error: {page} already exists" in again.stderr
    assert "--overwrite" in again.stderr
    assert run_command("report", fitted[0], "-o", page, "--overwrite").exit_code == 0


def test_report_says_what_is_wrong(run_command, fitted, tmp_path):
    for arguments, said in (
        ((tmp_path / "none",), f"{tmp_path / 'none'} holds neither a run nor a completion"),
        ((fitted[0], "--modes", "1"), "--modes names 1 modes; give two"),
        ((fitted[0], "--modes", "1,7"), "give two different ones from 0 to 2"),
    ):
        told = run_command("report", *arguments, "-o", tmp_path / "page.html")
        assert told.exit_code == 1
        assert said in told.stderr
        assert list(tmp_path.iterdir()) == []
