"""An entry as one page that a browser opens from disk, and runs the graph in."""
