"""One module per section of the settings file: data and validation only."""
