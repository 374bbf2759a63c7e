"""Production all-reduce kernels: device code in hip/, compiled on first use for the CPU host, NVIDIA or AMD."""
