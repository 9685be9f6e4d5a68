"""What is asked, of which models, how often, and what the answers must be."""
