"""The graph to serve, made from a fitted graph: open lengths, other runtimes, a gate."""
