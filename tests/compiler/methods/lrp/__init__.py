"""Layer-wise relevance propagation: rules, composites, AttnLRP, and rules of packages."""
