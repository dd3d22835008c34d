"""Plans: what compiling engines decide about a whole graph, as data, before any code is printed."""
