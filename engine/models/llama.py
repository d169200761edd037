"""The Llama family's forward pass over a flat batch of tokens.

Knows: weights under their Hugging Face names, the kernels, the order of operations. Does not know:
files, sequences, sampling, which device it is on.

A decode step of a small model is a few milliseconds of matrix products in dozens of layers, so a layer
here is ten calls and nothing else: q, k, v and gate, up are one matrix each, packed once at load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.models.config import ModelConfig
from engine.models.inputs import ForwardInputs, KVCache
from engine.models.rope import rope_tables
from kernels import Kernels

TakeTensor = Callable[[str, tuple[int, ...]], torch.Tensor]
"""Gives the tensor of that name, of any floating dtype and on any device, after checking its shape; a loader
makes it."""

Matmul = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: torch.Tensor
    qkv: Matmul
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: Matmul
    post_norm: torch.Tensor
    gate_up: Matmul
    down: Matmul


class CausalLM:
    """A model ready to run.

    Args:
        config: its shapes and options.
        take: gives each weight by its Hugging Face name; each is asked for once.
        kernels: the arithmetic, for `device`.
        device: where the weights go.
        dtype: of weights and activations.
    """

    def __init__(
        self,
        config: ModelConfig,
        take: TakeTensor,
        kernels: Kernels,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        self.kernels = kernels
        self.device = torch.device(device)
        self.dtype = dtype
        self._embedding = self._placed(
            take("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
        )
        self._layers = [self._build_layer(take, index) for index in range(config.num_layers)]
        self._final_norm = self._placed(take("model.norm.weight", (config.hidden_size,)))
        self._lm_head = self._build_head(take)
        cos, sin = rope_tables(config.rope, config.head_dim, config.max_position_embeddings)
        self._cos, self._sin = cos.to(device), sin.to(device)

    @torch.inference_mode()
    def forward(self, inputs: ForwardInputs, kv: KVCache) -> torch.Tensor:
        """Computes T tokens, writes their keys and values into `kv`, and gives the sampled ones' logits.

        Returns:
            fp32 logits, [R, vocab_size], in the order of `inputs.sampled`.
        """
        return self.logits(*self.hidden(inputs, kv), inputs.sampled)

    @torch.inference_mode()
    def hidden(self, inputs: ForwardInputs, kv: KVCache) -> tuple[torch.Tensor, torch.Tensor]:
        """All layers: the part of `forward` that does not ask which tokens are sampled.

        Returns:
            The last layer's output and the residual that it is to be added to, [T, hidden_size] each.
        """
        config, kernels = self.config, self.kernels
        eps, window, scale = config.rms_norm_eps, config.sliding_window, config.head_dim**-0.5
        cos, sin = self._cos, self._sin
        positions, slots = inputs.positions, inputs.slots
        tables, lens, starts = inputs.block_tables, inputs.context_lens, inputs.query_start

        residual = self._embedding[inputs.token_ids]
        x = kernels.rms_norm(residual, self._layers[0].input_norm, eps)
        for index, layer in enumerate(self._layers):
            keys, values = kv.keys[index], kv.values[index]
            if index:
                x = kernels.add_rms_norm(x, residual, layer.input_norm, eps)
            q = kernels.rope_and_cache(
                layer.qkv(x), positions, slots, cos, sin, keys, values, layer.q_norm, layer.k_norm, eps
            )
            x = layer.o(kernels.paged_attention(q, keys, values, tables, lens, starts, scale, window))
            x = kernels.add_rms_norm(x, residual, layer.post_norm, eps)
            x = layer.down(kernels.silu_mul(layer.gate_up(x)))
        return x, residual

    @torch.inference_mode()
    def logits(self, x: torch.Tensor, residual: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        """fp32 logits, [R, vocab_size], of the tokens `sampled` [R] of what `hidden` gave."""
        if sampled.numel() == 0:
            return residual.new_empty((0, self.config.vocab_size), dtype=torch.float32)
        eps = self.config.rms_norm_eps
        x = self.kernels.add_rms_norm(x[sampled], residual[sampled], self._final_norm, eps)
        return self._lm_head(x).float()

    def _build_layer(self, take: TakeTensor, index: int) -> _Layer:
        config, prefix = self.config, f"model.layers.{index}."
        hidden, inner = config.hidden_size, config.intermediate_size
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def norm(name: str, size: int) -> torch.Tensor:
            return self._placed(take(f"{prefix}{name}.weight", (size,)))

        def linear(parts: dict[str, int], fan_in: int, bias: bool) -> Matmul:
            """One matrix from the rows of all `parts` (name -> rows)."""
            weights = [take(f"{prefix}{name}.weight", (rows, fan_in)) for name, rows in parts.items()]
            biases = [take(f"{prefix}{name}.bias", (rows,)) for name, rows in parts.items() if bias]
            return self._pack(_join(weights), _join(biases) if bias else None)

        qkv = {"self_attn.q_proj": q_size, "self_attn.k_proj": kv_size, "self_attn.v_proj": kv_size}
        gate_up = {"mlp.gate_proj": inner, "mlp.up_proj": inner}
        return _Layer(
            input_norm=norm("input_layernorm", hidden),
            qkv=linear(qkv, hidden, config.qkv_bias),
            q_norm=norm("self_attn.q_norm", config.head_dim) if config.qk_norm else None,
            k_norm=norm("self_attn.k_norm", config.head_dim) if config.qk_norm else None,
            o=linear({"self_attn.o_proj": hidden}, q_size, config.o_bias),
            post_norm=norm("post_attention_layernorm", hidden),
            gate_up=linear(gate_up, hidden, config.mlp_bias),
            down=linear({"mlp.down_proj": hidden}, inner, config.mlp_bias),
        )

    def _build_head(self, take: TakeTensor) -> Matmul:
        if self.config.tie_word_embeddings:
            return self._pack(self._embedding, None)
        return self._pack(take("lm_head.weight", (self.config.vocab_size, self.config.hidden_size)), None)

    def _pack(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Matmul:
        packed: Matmul = self.kernels.Linear(
            self._placed(weight), None if bias is None else self._placed(bias)
        )
        return packed

    def _placed(self, weight: torch.Tensor) -> torch.Tensor:
        # In this order, so that what crosses to the device is what stays there.
        return weight.to(self.dtype).to(self.device)


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
