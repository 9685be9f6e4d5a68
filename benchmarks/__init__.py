"""Tools that measure explanations and the machine they run on; part of the repository, not of the wheel.

They need the extra `bench`. `rationale bench` takes from here what it compares with beside SHAP and captum.
"""
