"""Zstandard: from the standard library where it is there, from its backport elsewhere."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdCompressor, ZstdDecompressor, ZstdError, compress, decompress
else:
    from backports.zstd import ZstdCompressor, ZstdDecompressor, ZstdError, compress, decompress

__all__ = ["ZstdCompressor", "ZstdDecompressor", "ZstdError", "compress", "decompress"]
