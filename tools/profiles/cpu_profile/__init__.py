"""cpu_profile: which code uses the CPUs."""
