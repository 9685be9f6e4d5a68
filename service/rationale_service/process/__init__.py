"""A serving process: its sockets, its signals, and its role among several."""
