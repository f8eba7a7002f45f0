"""What `slrt-dask plan` is told, and what it says of it."""

from __future__ import annotations


def test_a_plan_is_for_the_method_of_the_fit(run_command, store):
    """Hessian products have wider sums; a certificate needs some width with any method."""

    def planned(*flags):
        said = run_command("plan", store.path, "--ranks", "6,6,6", *flags)
        assert said.exit_code == 0, said.stderr
        return next(line for line in said.stdout.splitlines() if line.startswith("fibre sums"))

    assert planned() == planned("--method", "lbfgs")
    assert planned() != planned("--method", "rtr")
