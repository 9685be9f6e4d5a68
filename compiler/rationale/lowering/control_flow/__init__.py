"""The replacement of If, Loop, Scan and sequences by the nodes that they run."""
