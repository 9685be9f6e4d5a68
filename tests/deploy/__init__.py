"""What deploys the gateway: charts, manifests, a dashboard."""
