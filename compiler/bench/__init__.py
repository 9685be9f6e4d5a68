"""`rationale bench`: how fast an explanation is beside the plain model and beside its peers.

Imported by the command line alone; it needs the extra `bench` (torch, torchvision, shap, captum).
"""
