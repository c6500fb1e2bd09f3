"""What is this computer? Its devices as a cluster, its rates as measured, and what is set up badly."""
