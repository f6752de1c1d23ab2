"""Runs as OpenTelemetry traces, and traces as runs."""
