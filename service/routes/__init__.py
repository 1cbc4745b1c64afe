"""The resources of the REST API, one module each."""
