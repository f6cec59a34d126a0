"""Files in and out: videos, pictures, latents, noise. Import from the modules of this package."""
