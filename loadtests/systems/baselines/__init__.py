"""Today's usual setup: an explainer library behind FastAPI (`python -m loadtests.systems.baselines`)."""
