"""`ctrlgrad graph` prints what the library makes of a file's function, or says why it cannot."""

import re

import numpy as np
import pytest

import ctrlgrad as cg

PROGRAM = """
import numpy as np
import ctrlgrad as cg


def halve(x):
    return cg.while_loop(lambda y: y > 1.0, lambda y: y / 2, x)


def choose(x):
    return cg.cond(x > 0, lambda x: x * x, lambda x: -x, x)


def loop_of_branches(x):
    return cg.while_loop(lambda y: y > 1.0, lambda y: choose(y) / (y + y), x)


@cg.function
def already(x):
    return halve(x)


def fails(x):
    raise KeyError("of the user")


def leaves(x):
    raise SystemExit(3)


def branches_in_python(x):
    return x if x > 0 else -x


def example_args():
    return (np.float64(10.0),)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def halve(x):
    return cg.while_loop(lambda y: y > 1.0, lambda y: y / 2, x)


def test_it_prints_the_graph(command, program):
    result = command("graph", f"{program}:halve")
    assert result.exit_code == 0
    assert result.stdout == f"{cg.function(halve).graph(np.float64(10.0))}\n"


def test_it_prints_the_gradient(command, program):
    result = command("graph", f"{program}:halve", "--grad")
    assert result.stdout == f"{cg.function(cg.grad(halve)).graph(np.float64(10.0))}\n"
    assert "while" in result.stdout and "stack_pop" not in command("graph", f"{program}:halve").stdout


def test_a_function_of_the_library_works_too(command, program):
    assert "while" in command("graph", f"{program}:already").stdout


def test_sources_show_file_and_line(command, program):
    line = next(n for n, text in enumerate(PROGRAM.splitlines(), start=1) if "y / 2" in text)
    assert f"program.py:{line}" in command("graph", f"{program}:halve", "--sources").stdout
    assert "program.py" not in command("graph", f"{program}:halve").stdout


def test_it_prints_the_plan(command, program):
    text = command("graph", f"{program}:loop_of_branches", "--grad", "--plan").stdout
    assert text.startswith("plan grad_loop_of_branches(r1: f64) {\n")
    assert "loop 0, iteration" in text and " = pop s" in text
    assert "  buffer b" not in text, "scalars lie in registers"


@pytest.mark.parametrize(
    "options, words",
    [
        (("--plan", "--lowered"), "--lowered --plan"),
        (("--plan", "--sources"), "--plan --sources"),
        (("--partitioned", "--lowered"), "--lowered --partitioned"),
        (("--plan", "--dot"), "--dot --plan"),
        (("--sources", "--dot"), "--dot --sources"),
        (("--dot",), "--lowered or --partitioned"),
        (("--plan", "--svg", "picture.svg"), "--plan with one of them"),
        (("--lowered", "--html", "page.html"), "--lowered --dot"),
        (("--partitioned", "--svg", "picture.svg"), "--partitioned --dot"),
    ],
)
def test_options_that_exclude_each_other(command, program, options, words):
    result = command("graph", f"{program}:halve", *options)
    assert result.exit_code == 2 and result.stdout == "" and words in result.stderr


@pytest.mark.parametrize("grad", [(), ("--grad",)])
@pytest.mark.parametrize("stage", ["--lowered", "--partitioned"])
@pytest.mark.parametrize("name", ["halve", "choose", "loop_of_branches"])
def test_dot_declares_what_its_edges_join_and_closes_what_it_opens(command, program, name, stage, grad):
    text = command("graph", f"{program}:{name}", "--dot", stage, *grad).stdout
    nodes = re.findall(r"^\s*(n\d+) \[label=", text, re.M)
    edges = re.findall(r"^\s*(n\d+) -> (n\d+)", text, re.M)
    assert len(nodes) == len(set(nodes)) and edges
    assert {end for edge in edges for end in edge} == set(nodes)
    unquoted = re.sub(r'"(\\.|[^"\\])*"', "", text)
    assert unquoted.count("{") == unquoted.count("}")


@pytest.mark.parametrize(
    "target, words",
    [
        ("{program}", "FILE.py:FUNCTION"),
        ("{program}:", "FILE.py:FUNCTION"),
        ("{program}:a.b", "FILE.py:FUNCTION"),
        ("no_such_file.py:f", "no such file"),
        ("{program}:missing", "halve or choose"),
        ("{program}:np", "no function 'np'"),
        ("{program}:fails", "KeyError: 'of the user'"),
        ("{program}:leaves", "SystemExit: 3"),
        ("{program}:branches_in_python", "ctrlgrad.cond"),
    ],
)
def test_a_target_that_cannot_be_used(command, program, target, words):
    result = command("graph", target.format(program=program))
    assert result.exit_code == 2 and result.stdout == ""
    assert words in result.stderr and "Traceback" not in result.stderr


def test_an_error_in_the_users_code_names_his_line(command, program):
    line = next(n for n, text in enumerate(PROGRAM.splitlines(), start=1) if "KeyError" in text)
    assert f"program.py:{line} in fails" in command("graph", f"{program}:fails").stderr


@pytest.mark.parametrize(
    "text, words",
    [
        ("def f(x): return x\n", "example_args()"),
        ("def f(x): return x\ndef example_args(): return 3\n", "int from example_args()"),
        ("def f(x: return x\n", "SyntaxError"),
        ("import no_such_module_at_all\n", "no_such_module_at_all"),
    ],
)
def test_a_file_that_cannot_be_used(command, tmp_path, text, words):
    path = tmp_path / "file.py"
    path.write_text(text)
    result = command("graph", f"{path}:f")
    assert result.exit_code == 2 and words in result.stderr and "Traceback" not in result.stderr


@pytest.fixture
def halving(tmp_path):
    path = tmp_path / "halving.py"
    path.write_text(
        "import ctrlgrad as cg\n"
        "def halve(x):\n    return cg.while_loop(lambda y: y > 1.0, lambda y: y / 2, x)\n"
        "def example_args():\n    return (8.0,)\n"
    )
    return path


def test_a_picture_and_a_page_need_no_other_program(command, halving, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    picture, page = tmp_path / "picture.svg", tmp_path / "page.html"
    result = command("graph", f"{halving}:halve", "--grad", "--svg", picture, "--html", page)
    assert (result.exit_code, result.output) == (0, "")
    assert picture.read_text().startswith("<svg ") and "as long as" in picture.read_text()
    assert page.read_text().startswith("<!doctype html>") and "http://" not in page.read_text().replace(
        "http://www.w3.org/2000/svg", ""
    )
