"""What teams do today: an explainer library behind FastAPI (`python -m loadtests.systems.baselines`)."""
