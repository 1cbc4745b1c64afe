"""The commands of `phoenix` that speak with a service or its database, one module for each kind of thing."""
