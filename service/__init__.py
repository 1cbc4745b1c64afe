"""The service: runs, trials and faults over REST, kept in a database, executed by `chaos`."""
