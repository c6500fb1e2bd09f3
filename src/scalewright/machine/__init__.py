"""This computer: its devices as a cluster, its rates as measured, and what is set up badly."""
