"""Resources that change while the gateway serves: explainers and reference sets."""
