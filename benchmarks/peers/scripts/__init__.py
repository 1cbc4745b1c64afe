"""Training scripts of the peers. They run in the peers' environments: torch, numpy and the peer are all there is."""
