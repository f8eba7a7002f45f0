"""What the benchmarks compare with computes the same, and tables go where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parent.parent / "pipelines/bench"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.mark.parametrize("shape", [(9, 8), (7, 6, 5), (5, 4, 3, 4)])
def test_plain_loops_and_sparse_matrices_make_the_same_product(shape, bench):
    from csr import csr_product
    from plain import plain_product, plain_room

    generator = np.random.default_rng(0)
    columns = tuple(index.astype(np.int32) for index in np.nonzero(generator.random(shape) < 0.4))
    ranks = tuple(range(2, 2 + len(shape)))
    factors = [generator.standard_normal(pair) for pair in zip(shape, ranks, strict=True)]
    weights = tuple(generator.uniform(0.5, 2.0, len(shape)))
    x = generator.standard_normal(columns[0].size)
    room, out = plain_room(columns, shape, ranks), np.zeros_like(x)
    plain_product(columns, shape, factors, weights, 0.7, x, out, room)
    product = csr_product(columns, room["fibres"], shape, factors, weights, 0.7, x)
    np.testing.assert_allclose(product(), out, rtol=1e-12)
    dense = np.zeros(shape)
    dense[columns] = x
    wanted = 0.7 * dense
    for mode, (factor, weight) in enumerate(zip(factors, weights, strict=True)):
        moved = np.moveaxis(dense, mode, 0)
        wanted += weight * np.moveaxis(np.tensordot(factor @ factor.T, moved, axes=1), 0, mode)
    np.testing.assert_allclose(out, wanted[columns], rtol=1e-10)


def test_every_section_of_the_readme_can_be_written(bench, tmp_path, monkeypatch):
    import report
    import run
    from measuring import Row

    copy = tmp_path / "README.md"
    copy.write_text((BENCH / "README.md").read_text())
    monkeypatch.setattr(report, "README", copy)
    for section in run.SECTIONS:
        report.write_table(section, [Row("a thing", "2 × another", f"in {section}")])
        assert f"| a thing | 2 × another | in {section} |" in copy.read_text()
    before = copy.read_text()
    report.write_table(run.SECTIONS[0], [Row("a thing", "2 × another", f"in {run.SECTIONS[0]}")])
    assert copy.read_text() == before
    with pytest.raises(SystemExit, match="no marks"):
        report.write_table("nothing", [])
