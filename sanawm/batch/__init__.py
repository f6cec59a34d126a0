"""Many runs from one manifest: checked first, then made by workers that keep their models."""
