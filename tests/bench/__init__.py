"""Measurements of this machine. They print tables; `make bench` runs them all."""
