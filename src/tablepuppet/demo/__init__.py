"""The demo: New York's flights of 2013, whose owners pool nothing."""
