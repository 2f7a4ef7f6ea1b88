"""The tool compare_runs: what makes two runs of one configuration differ in speed."""
