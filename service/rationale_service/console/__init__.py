"""The console: a page on which people see and touch explanations, served by the gateway itself."""
