"""The streaming refiner: transformer, cache, sampler and chunk runner."""
