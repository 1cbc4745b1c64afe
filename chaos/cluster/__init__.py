"""Nodes that are hosts of their own to the network, on one machine and without root; and ways to break that network."""
