"""Layer-wise relevance propagation: rules, composites, AttnLRP."""
