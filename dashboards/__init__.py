"""The web pages. They know the service by its REST API alone and import nothing of the other packages."""
