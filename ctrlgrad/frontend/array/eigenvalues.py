"""Eigenvalues and eigenvectors of matrices that need not be hermitian."""

from __future__ import annotations

from typing import Any, NamedTuple

from ctrlgrad.frontend.apply import apply
from ctrlgrad.frontend.array.decompositions import matrices
from ctrlgrad.frontend.functions import array_function


class EigResult(NamedTuple):
    """What `eig` returns: x @ eigenvectors = eigenvectors @ diag(eigenvalues)."""

    eigenvalues: Any
    eigenvectors: Any


@array_function()
def eig(x: Any, /) -> EigResult:
    """Eigenvalues [..., n], in no order that is stated, and eigenvectors as columns: [..., n, n].

    Args:
        x: [..., n, n]. Of matrices that are hermitian `eigh` is faster and more exact.

    Both are complex, of real matrices too (NumPy gives real ones where all eigenvalues happen to be real). A column has
    norm 1, and its largest component is real. Derivatives exist where the eigenvalues are distinct; those of the
    vectors are along this scaling.

    >>> cnp.linalg.eig([[0.0, 1.0], [-1.0, 0.0]]).eigenvalues
    array([0.+1.j, 0.-1.j])
    """
    x = matrices("eig", x, square=True)
    return EigResult(apply("general_eigenvalues", [x]), apply("general_eigenvectors", [x]))


@array_function()
def eigvals(x: Any, /) -> Any:
    """The eigenvalues of `eig` alone.

    >>> cnp.linalg.eigvals([[2.0, 1.0], [0.0, 1.0]])
    array([2.+0.j, 1.+0.j])
    """
    return apply("general_eigenvalues", [matrices("eigvals", x, square=True)])


__all__ = ["eig", "eigvals"]
