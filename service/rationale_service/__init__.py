"""Rationale's gateway: serves the entries that the compiler writes."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # ONNX Runtime reads it when it is imported (docs/security.md)
