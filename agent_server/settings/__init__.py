"""One settings file, with overrides from the environment; secrets stand in files or variables of their own."""
