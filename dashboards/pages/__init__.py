"""One module for each view: `page` asks the API, the other functions are pure."""
