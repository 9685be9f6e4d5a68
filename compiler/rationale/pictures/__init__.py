"""Pictures of explanations: HTML and SVG that need nothing, and matplotlib's."""
