"""What the Triton kernels, a decode step and the engine come to on one GPU, in one run of a few minutes.

    python -m benchmarks.gpu [--json PATH] [--models NAME,NAME] [--parts 1,2,3,4] [--seconds N]
    python -m benchmarks.gpu --dry

1. Numerics: every kernel against `kernels.reference` in fp64, on fresh random inputs and poisoned memory.
2. Speed: every kernel beside its floor: the bytes it must move, at the bandwidth of a copy, or its
   operations, at the rate of a large matrix product, whichever takes longer; both are measured first.
3. Decode steps of whole models beside the floor of their bytes, and beside transformers on the same weights.
4. The engine with 256 streams, each of which asks anew when its answer ends, and transformers' continuous
   batching with the same prompts and lengths of answers.

Models have the shapes of real ones and random weights: nothing is fetched. No part can take the time of the
others: what would not fit is left out, and said to be. A part that fails does not end the run either.

`--dry` takes the same path on the CPU, at tiny sizes and through Triton's interpreter: to see that all of it
runs. Its times mean nothing.
"""
