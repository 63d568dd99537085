"""Stand-ins for a GPU machine, named as such wherever they answer.

`site/` holds packages that the GPU benchmarks import there (torch, transformers, vLLM), `bin/` the
programs that they start (nvcc, nsys, nvidia-smi). Their "device" is the stand-in for CUPTI of
`tests/native`: kernels are records without work behind them, so that nothing measured through
them says anything about a GPU. What they show is that a script comes to its end.
"""
