"""Tools that measure explanations and the machine they run on; part of the repository, not of the wheel.

They need the extra `bench`; `python -m benchmarks --help` lists them.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime reads it when it is imported (docs/security.md)
