"""A stand-in for NVIDIA's management library, for machines without a GPU: what it says comes from files of a trial."""
