"""Numerical building blocks shared by the models: rotary embedding, norms, attention."""
