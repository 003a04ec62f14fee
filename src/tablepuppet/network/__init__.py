"""Parties in processes of their own: the coordinator, clients that dial in, users that submit jobs."""
