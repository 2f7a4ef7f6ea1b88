"""One settings file, overridden by environment variables; secrets are in files or variables of their own."""
