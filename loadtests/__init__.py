"""Load on the gateway, and its cost: each module is a command (`python -m loadtests.NAME --help`)."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime reads it when it is imported (docs/security.md)
