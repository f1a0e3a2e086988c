"""Replays request traces against the router's own policy code and simulated workers, in virtual time."""
