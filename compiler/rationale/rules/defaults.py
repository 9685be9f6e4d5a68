"""Defaults of ONNX's attributes, as its files store every such number: rounded to float32."""

import numpy as np

EPSILON = float(np.float32(1e-5))  # of every normalisation
FIFTH, HUNDREDTH = float(np.float32(0.2)), float(np.float32(0.01))  # of HardSigmoid, and of LeakyRelu
LRN_ALPHA = float(np.float32(1e-4))
MOMENTUM = float(np.float32(0.9))  # of BatchNormalization in training
