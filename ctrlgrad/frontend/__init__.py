"""From Python functions to graphs: traced tensors, array functions, and constructs with regions.

The modules, in reading order:

    trace, tracer, tensor    the current trace, tracing a function, and the traced tensor
    apply                    one op on traced tensors or concrete arrays
    functions, array         the table of array functions, and the functions themselves
    branches, loops          `cond`, `switch`, `while_loop`, `scan`, `fori_loop`, `associative_scan`
    carry, tensor_array      types of a loop's carry, and arrays that grow in a loop
    rules, host_calls        functions with derivative rules of the user, and calls of Python from a graph
    watched                  captured Python values of a traced function
    checks                   errors for wrong arguments
"""
