"""The options of `:decide` that change its answer."""
