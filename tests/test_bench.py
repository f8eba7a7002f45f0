"""The benchmarks run, what they compare with computes the same, and tables go where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parent.parent / "pipelines/bench"


@pytest.fixture(autouse=True)
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.mark.parametrize("shape", [(9, 8), (7, 6, 5), (5, 4, 3, 4)])
def test_plain_loops_and_sparse_matrices_make_the_same_product(shape):
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


def test_an_empty_round_sums_one_for_every_block(tmp_path):
    from scale import EmptyRounds
    from solving import in_process, store_of

    with in_process(store_of(tmp_path, (60, 40, 30), 45_000), 2) as engine:
        assert engine.run(EmptyRounds(3, 5)) == 2.0


def test_products_sweeps_and_sizes_can_be_measured(tmp_path):
    import kernels
    import scale
    import sizing

    assert kernels.measured(tmp_path, (9, 8, 7), (2, 3, 2), 200, repeats=1).ours > 0.0
    assert len(scale.growth(tmp_path, (10_000, 20_000))) == 2
    assert sizing.row(1_000_000, (5, 5, 5), 4, 2).startswith("| 1,000,000 of 1000×500×200")


def test_every_section_of_the_readme_can_be_written(tmp_path):
    import report
    import run
    from measuring import Row

    copy = tmp_path / "README.md"
    copy.write_text((BENCH / "README.md").read_text())
    for section in run.SECTIONS:
        report.write_table(section, [Row("a thing", "2 × another", f"in {section}")], copy)
        assert f"| a thing | 2 × another | in {section} |" in copy.read_text()
    with pytest.raises(SystemExit, match="nothing"):
        report.write_table("nothing", [], copy)
