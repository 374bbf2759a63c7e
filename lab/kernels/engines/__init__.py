"""The objects that inference engines call for a custom all-reduce, around lab.kernels.communicator.AllReduce."""
