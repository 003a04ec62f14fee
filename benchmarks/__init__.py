"""Benchmarks: time, bytes and memory of every algorithm, beside what pooling the tables would cost."""
