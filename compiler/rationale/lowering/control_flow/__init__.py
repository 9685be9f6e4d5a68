"""If, Loop, Scan and sequences, which become the nodes that they run."""
