"""A process that serves: its sockets, its signals, and its part where several serve together."""
