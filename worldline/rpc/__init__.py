"""What every service and client shares about gRPC: channels, servers, errors, tracing."""
