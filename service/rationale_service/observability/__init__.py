"""Records of requests: metrics, statistics, traces and log lines."""
