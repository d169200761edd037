"""Computes a tick's batch on a GPU: persistent rows, one copy each way, forward passes replayed from graphs.

Knows: torch, CUDA and HIP by the same names. Does not know: sequences, blocks' owners, how kernels are made.
"""
