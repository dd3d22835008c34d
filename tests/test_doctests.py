"""Every example in a docstring runs and shows what it says."""

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import ctrlgrad
import ctrlgrad.gradients
import ctrlgrad.memory
import ctrlgrad.numpy
import ctrlgrad.stacks

PACKAGES = (ctrlgrad, ctrlgrad.gradients, ctrlgrad.memory, ctrlgrad.stacks)
MODULES = sorted(
    {
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        if not module.name.endswith("__main__")
    }
)
# Packages that some modules or their examples need, and tests do without.
NEEDED = {
    "ctrlgrad.interop.from_onnx": "onnx",
    "ctrlgrad.interop.onnx": "onnx",
    "ctrlgrad.interop.from_torch": "torch",
    "ctrlgrad.interop.to_torch": "torch",
    "ctrlgrad.interop.torch": "torch",
}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    for module_name, package in NEEDED.items():
        if name == module_name or name.startswith(f"{module_name}."):
            pytest.importorskip(package)
    # By name from the import system: `ctrlgrad.function` as an attribute is the public function.
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"cg": ctrlgrad, "cnp": ctrlgrad.numpy, "np": np})
    assert result.failed == 0


PUBLIC = """while_loop cond scan fori_loop switch case map foldl foldr grad vjp jvp value_and_grad jacfwd jacrev
hessian vmap checkpoint check_grads"""


@pytest.mark.parametrize("name", PUBLIC.split())
def test_the_public_names_have_examples(name: str) -> None:
    assert ">>> " in (getattr(ctrlgrad, name).__doc__ or "")
