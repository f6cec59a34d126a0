"""Presets of sanawm: TOML files, and the embedded `tiny` model set."""
