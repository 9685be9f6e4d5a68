"""Tables of rows: frames in memory, files that are read, files that are written."""
