"""`ctrlgrad verify` catches a wrong rule, passes a right one, and says clearly what it cannot use."""

import json
import re

import numpy as np
import pytest

PROGRAM = """
import numpy as np
import ctrlgrad as cg
import ctrlgrad.numpy as cnp


@cg.custom_vjp
def square(x):
    return x * x


square.defvjp(lambda x: (x * x, x), lambda x, ct: (2.0 * ct * x,))


@cg.custom_vjp
def skewed(x):
    return x * x


skewed.defvjp(lambda x: (x * x, x), lambda x, ct: (2.001 * ct * x,))


@cg.custom_jvp
def pushed(x):
    return x * x


pushed.defjvp(lambda primals, tangents: (primals[0] ** 2, 1.999 * primals[0] * tangents[0]))


def repeated(fn, params, x):
    return cg.while_loop(lambda y: cnp.sum(y * y) < 50.0, lambda y: 0.5 * fn(y) + y * params["w"], x)


def right(params, x):
    return repeated(square, params, x)


def wrong(params, x):
    return repeated(skewed, params, x)


def wrong_forward(params, x):
    return repeated(pushed, params, x)


def plain(params, x):
    return repeated(lambda y: y * y, params, x)


def doubled(params, x):
    # At the first element of x every step changes the trip count.
    y = cg.while_loop(lambda y: y[0] < 8.0, lambda y: y * 2.0, x / 0.8)
    return y * params["w"]


def scaled(x, y, by=2.0):
    return x * y * by


def fails(params, x):
    return x[int(np.zeros(1)[3])]


def out_of_range(params, x):
    return cg.fori_loop(0, 5, lambda i, total: total + x[i], 0.0)


def integers(params, x):
    return cnp.sum(x).astype(int)


def example_args():
    return {"w": np.array([1.1, 1.2])}, np.array([0.8, 0.9])
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def verified(command, program):
    """Run `verify` on a function of the program; the result with the parsed JSON as `data`."""

    def run(name, *arguments):
        result = command("verify", f"{program}:{name}", "--json", *arguments)
        result.data = json.loads(result.stdout) if result.stdout else None
        return result

    return run


@pytest.fixture
def refused(command, program):
    """Run `verify`, demand that it refuses, and return what it said."""

    def run(name, *arguments, file=program):
        result = command("verify", f"{file}:{name}", *arguments)
        assert result.exit_code == 2, (result.output, result.exception)
        assert result.stdout == "" and "Traceback" not in result.stderr
        assert len(re.findall(r"^(Error:|╭─ Error)", result.stderr, re.M)) == 1
        return result.stderr

    return run


def test_a_right_function_passes_in_both_modes_and_orders(verified):
    result = verified("plain")
    assert result.exit_code == 0 and result.data["ok"] and result.data["function"] == "plain"
    rows = result.data["rows"]
    modes = ["rev", "fwd", *(f"{a} over {b}" for a in ("rev", "fwd") for b in ("rev", "fwd"))]
    found = {(r["argument"], r["order"], r["mode"], r["judge"]) for r in rows if r["order"]}
    assert found == {
        (argument, 1 + (" over " in mode), mode, judge)
        for argument in ("params['w']", "x")
        for mode in modes
        for judge in ("jax (scan)", "finite differences")
    }
    for r in rows:
        assert r["ok"] and 0.0 <= r["absolute_error"] <= r["tolerance"] < 1e-2


def test_a_right_rule_of_the_users_passes(verified):
    assert verified("right", "--modes", "rev").exit_code == 0


@pytest.mark.parametrize("judge", ["finite_differences", "jax"])
@pytest.mark.parametrize("name, mode", [("wrong", "rev"), ("wrong_forward", "fwd")])
def test_a_rule_that_is_wrong_by_a_thousandth_is_caught_by_each_judge(verified, name, mode, judge):
    result = verified(name, "--modes", mode, "--against", judge, "--order", 1)
    assert result.exit_code == 1 and not result.data["ok"]
    wrong = [r for r in result.data["rows"] if not r["ok"]]
    assert {r["argument"] for r in wrong} == {"params['w']", "x"}
    assert all(1e-4 < r["relative_error"] < 1e-1 for r in wrong)


def test_the_table_names_arguments_errors_and_tolerances(command, program):
    result = command("verify", f"{program}:wrong", "--modes", "rev", "--order", 1)
    assert result.exit_code == 1
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["argument", "order", "mode", "judge", "error", "error", "tolerance"] in lines
    numbers = r"\d\.\de[+-]\d\d"
    for name in (r"params\['w'\]", "x"):
        assert re.search(rf"{name} +1 +rev +jax \(scan\) +{numbers} +{numbers} +{numbers} +WRONG", result.stdout)
    assert "wrong: 4 of 5 comparisons disagree" in result.stdout


def test_a_comparison_that_crosses_a_trip_count_is_not_judged(command, program, verified):
    result = command("verify", f"{program}:doubled", "--modes", "rev", "--order", 1)
    assert result.exit_code == 0
    assert re.search(r"x +1 +rev +finite differences .* not judged: every step changes a trip count", result.stdout)
    assert "doubled: 4 of 5 comparisons agree, 1 could not be judged" in result.stdout
    data = verified("doubled", "--modes", "rev", "--order", 1).data
    assert data["ok"] and data["not_judged"] == 1
    assert [(r["argument"], r["judge"]) for r in data["rows"] if r["ok"] is None] == [("x", "finite differences")]


def test_where_nothing_could_be_judged_the_command_fails_and_says_so(command, tmp_path):
    path = tmp_path / "jump.py"
    path.write_text(
        "import numpy as np, ctrlgrad as cg\n"
        "def f(x): return cg.cond(x > 0.0, lambda: x, lambda: 3.0 * x)\n"
        "def example_args(): return (np.array(0.0),)\n"
    )
    result = command("verify", f"{path}:f", "--against", "finite_differences", "--order", 1)
    assert result.exit_code == 1
    assert "f: no derivative could be judged: 2 of 2 comparisons could not" in result.stdout
    assert "nothing is known about the derivatives" in result.stdout


def test_the_table_fits_a_terminal_of_100_columns(command, program):
    result = command("verify", f"{program}:plain")
    assert result.exit_code == 0 and "all 25 comparisons agree" in result.stdout
    assert max(map(len, map(str.rstrip, result.stdout.splitlines()))) < 100


def test_the_seed_fixes_the_directions(verified):
    errors = [
        [r["absolute_error"] for r in verified("plain", "--order", 1, "--seed", seed).data["rows"]]
        for seed in (1, 1, 2)
    ]
    assert errors[0] == errors[1] != errors[2]


@pytest.mark.parametrize("names", [("arg0", "arg1"), ("x", "y"), ("x", "y", "by")])
def test_arguments_from_a_file_of_arrays(verified, tmp_path, names):
    values = dict(zip(names, (np.array([1.0, 2.0]), np.float64(3.0), np.float64(0.5)), strict=False))
    np.savez(tmp_path / "args.npz", **values)
    result = verified("scaled", "--npz", tmp_path / "args.npz", "--order", 1, "--modes", "rev")
    assert result.exit_code == 0
    found = {r["argument"] for r in result.data["rows"] if r["order"]}
    assert found == {"x", "y", "by"} if len(names) == 3 else found == {"x", "y"}


@pytest.mark.parametrize(
    "options, words",
    [
        (("--modes", "backwards"), "--modes"),
        (("--modes", ","), "--modes"),
        (("--against", "torch"), "--against"),
        (("--order", "0"), "--order"),
        (("--order", "two"), "--order"),
        (("--seed", "-1"), "--seed"),
    ],
)
def test_options_that_make_no_sense(refused, options, words):
    assert words in refused("plain", *options)


@pytest.mark.parametrize(
    "name, words",
    [
        ("missing", "no function 'missing'"),
        ("fails", "IndexError"),
        ("out_of_range", "iteration 2"),
        ("integers", "no result to differentiate"),
        ("scaled", "TypeMismatchError|dict"),
        ("example_args", "do not fit"),
    ],
)
def test_functions_that_cannot_be_checked(refused, name, words):
    assert re.search(words, refused(name))


def test_modes_that_a_custom_rule_lacks_are_not_judged(command, program):
    result = command("verify", f"{program}:right")
    assert result.exit_code == 0
    assert "could not be judged" in result.output and "needs a forward rule" in " ".join(result.output.split())


def test_targets_that_cannot_be_used(refused, tmp_path):
    assert "no such file" in refused("f", file=tmp_path / "none.py")
    (tmp_path / "bare.py").write_text("def f(x): return x\n")
    message = refused("f", file=tmp_path / "bare.py")
    assert "example_args()" in message and "--npz" in message


def object_array(path):
    np.savez(path, arg0=np.array([{"a": 1}], dtype=object), arg1=np.ones(2))


def single_array(path):
    with path.open("wb") as file:
        np.save(file, np.ones(3))


@pytest.mark.parametrize(
    "write, words",
    [
        (lambda path: None, "no such file"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: path.write_bytes(b"PK\3\4 no zip"), "cannot be read"),
        (lambda path: path.write_text("x = 1"), "cannot be read"),
        (single_array, "single array"),
        (object_array, "never loaded"),
        (lambda path: np.savez(path), "arg0, arg1"),
        (lambda path: np.savez(path, a=np.ones(2), b=np.ones(2)), "x, y, by"),
        (lambda path: np.savez(path, x=np.ones(2)), "x, y, by"),
        (lambda path: np.savez(path, arg0=np.ones(2)), "do not fit"),
        (lambda path: np.savez(path, arg0=np.ones(2), arg1=np.array(["text"])), "dtype"),
    ],
    ids=["missing", "empty", "no zip", "text", "npy", "pickle", "none", "names", "too few", "count", "strings"],
)
def test_files_of_arrays_that_cannot_be_used(refused, tmp_path, write, words):
    path = tmp_path / "args.npz"
    write(path)
    assert words in refused("scaled", "--npz", path)


def test_a_truncated_file_of_arrays(refused, tmp_path):
    path = tmp_path / "args.npz"
    np.savez(path, arg0=np.ones(200), arg1=np.ones(200))
    path.write_bytes(path.read_bytes()[:1500])
    assert "cannot be read" in refused("scaled", "--npz", path)
