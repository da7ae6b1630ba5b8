"""The fast path: dense decoders computed by hand, packed, on the quickest exact kernels this machine has."""
