"""Stage 1: the streaming, camera-controlled diffusion transformer that makes the clean latents.

`config` and `plan` import no torch. The public surface: `config.Stage1Config`,
`weights.load_stage1`, `sampler.Stage1Stream` with its `noise` and `camera` sources, and
`bidirectional.denoise_clip`.
"""
