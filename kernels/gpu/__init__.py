"""The kernels for GPUs, in Triton: a module for each kind, and `kernels.gpu.kernels`, which joins them.

Knows: how each kernel cuts its work into programs and tiles. Does not know: models, sequences, CUDA graphs.

A module has the `@triton.jit` kernels and, for each function of `kernels.Kernels`, one of the same name whose
first parameter is the `Device` to launch on. These look at shapes and dtypes only, never at a value that
lies on the device: so they never wait for it, can be captured in a graph, and can be run on meta tensors to
learn what they would launch.
"""
