"""`rationale bench`: how fast an explanation is beside the plain model, SHAP and captum.

Imported by the command line alone; it needs the extra `bench` (torch, torchvision, shap, captum). What else
measures is in `benchmarks` at the top of the repository.
"""
