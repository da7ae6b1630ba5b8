"""The numbers: base models, adapters, losses, optimizers, the training pass and the sampler."""
