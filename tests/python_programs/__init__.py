"""Small functions in plain Python and NumPy: nothing here knows ctrlgrad. Each runs as it is, and traced.

Arguments of float dtype are differentiated; values stay away from kinks and from changes of a trip count.
"""

from python_programs import branches, loops
from python_programs.case import CASES, Case

__all__ = ["CASES", "Case", "branches", "loops"]
