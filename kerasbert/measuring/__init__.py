"""Benchmarks of exported models: latency, throughput, size, and difference from the model."""
