"""Pictures of explanations as HTML and SVG."""
