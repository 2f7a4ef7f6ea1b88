"""Match one rank's operations with those of other ranks, and align the ranks' clocks."""
