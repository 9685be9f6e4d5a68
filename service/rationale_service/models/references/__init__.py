"""Reference sets as resources, and requests that bring or name their references."""
