"""What can be asked: explainers and reference sets, while the gateway serves."""
