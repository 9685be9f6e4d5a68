"""The library of kernels, a shared object that exports `RegisterCustomOps`."""

from pathlib import Path

LIBRARY = Path(__file__).with_name("librationale_kernels.so")
