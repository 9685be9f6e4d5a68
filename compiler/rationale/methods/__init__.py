"""How a model is explained: methods, and the three engines that put them into its graph."""
