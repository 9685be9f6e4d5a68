"""gRPC: the Open Inference Protocol and health, on `grpc.aio`."""
