"""Decision speed: how many move decisions one process makes, and how long each takes."""
