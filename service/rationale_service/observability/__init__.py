"""What is told of requests: metrics, statistics, traces and log lines."""
