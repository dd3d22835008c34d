"""The gradient of an adaptive Runge-Kutta solution by its starting point and the equation's four parameters.

Lotka and Volterra's equations, float64, from time 0 to a given end, by the embedded pair of orders 5 and 4 whose
solution is of Dormand and Prince 1980, "A family of embedded Runge-Kutta formulae", and whose error estimate is of
Shampine 1986, "Some practical Runge-Kutta formulas". The next step is the present one times 0.9 error**(-1/5), held
between 1 and 10 after a step that is kept and between 0.2 and 0.9 after one that is not; the derivative ignores how the
step depends on the error. The loss is the sum of the solution at the end. All systems take the same steps.
"""

FIRST_STEP = 0.1
TOLERANCE = 1e-8
START = (1.0, 1.5)
PARAMETERS = (1.1, 0.4, 0.1, 0.4)
