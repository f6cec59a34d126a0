"""The tiny Gemma-3 recipe lives with the maker of the preset."""

from configs.tiny.make.tiny_gemma import *  # noqa: F403
