"""Loss paths.  At large vocabularies they decide the peak, so the path is an input.

Bytes per token × vocabulary at the peak, bf16 model, no autocast:

    upcast        14   transformers' ForCausalLMLoss: bf16 logits, fp32 copy, log-softmax, gradient
    native         8   cross-entropy on bf16 logits
    chunked            bf16 logits of all chunks, one chunk's fp32 copy at a time (torchtune)
    chunked_head       the head itself applied to chunks of `loss_chunk` tokens (litgpt)
    trl                TRL 1.16's fused head: one tile, logits never exist; gradients in fp32
    liger              Liger's fused linear cross-entropy: gradients computed in the forward
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from bench.fit.patches import replaced
from bench.fit.request import Request

TORCHTUNE_CHUNKS = 8

Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], tuple[torch.Tensor, Any]]


def loss_function(model: Any, request: Request) -> Forward:
    """(ids, labels, mask) → (loss, what the loop keeps alive)."""
    if request.tree == "litgpt":
        return _litgpt(model, request)
    if request.loss == "upcast":
        return _upcast(model, request)
    if request.loss == "native":
        return _native(model, request)
    heads: dict[str, Callable[[Any, torch.Tensor, torch.Tensor, Request], torch.Tensor]] = {
        "chunked": _chunked,
        "chunked_head": _chunked_head,
        "trl": _trl,
        "liger": _liger,
    }
    return _on_hidden_states(model, request, heads[request.loss])


def _upcast(model: Any, request: Request) -> Forward:
    def forward(ids: Any, labels: Any, mask: Any) -> tuple[torch.Tensor, Any]:
        out = model(
            input_ids=ids, attention_mask=mask, labels=labels, num_items_in_batch=ids.numel()
        )
        if request.fp32_outputs and out.logits is not None:
            out.logits = out.logits.float()
        return out.loss, out

    return forward


def _native(model: Any, request: Request) -> Forward:
    def forward(ids: Any, labels: Any, mask: Any) -> tuple[torch.Tensor, Any]:
        out = model(input_ids=ids, attention_mask=mask)
        logits = out.logits[..., :-1, :].contiguous()
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), labels[..., 1:].reshape(-1))
        del logits
        if request.fp32_outputs:
            out.logits = out.logits.float()
        return loss, out

    return forward


def _on_hidden_states(model: Any, request: Request, head: Callable[..., torch.Tensor]) -> Forward:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model

    def forward(ids: Any, labels: Any, mask: Any) -> tuple[torch.Tensor, Any]:
        hidden = base.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
        return head(base, hidden[:, :-1], labels[:, 1:], request), None

    return forward


def _logits(base: Any, hidden: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = base.get_output_embeddings()(hidden)
    cap = getattr(base.config, "final_logit_softcapping", None)
    return logits if cap is None else torch.tanh(logits / cap) * cap


def _chunked(base: Any, hidden: Any, labels: Any, request: Request) -> torch.Tensor:
    """torchtune's CEWithChunkedOutputLoss: upcast one chunk of logits at a time."""
    count = TORCHTUNE_CHUNKS
    size = request.loss_chunk or -(-hidden.shape[1] // count)
    chunks = [_logits(base, part) for part in hidden.split(size, dim=1)]
    total: Any = 0
    for logits, target in zip(chunks, labels.split(size, dim=1), strict=True):
        flat = logits.reshape(-1, logits.shape[-1]).float()
        total = total + F.cross_entropy(flat, target.reshape(-1), reduction="sum")
    return total / labels.numel()


def _chunked_head(base: Any, hidden: Any, labels: Any, request: Request) -> torch.Tensor:
    """litgpt's chunked_cross_entropy: no upcast, per-token losses concatenated."""
    size = request.loss_chunk or 128
    chunks = [_logits(base, part) for part in hidden.split(size, dim=1)]
    return _chunk_losses(chunks, labels, size)


def _chunk_losses(chunks: list[torch.Tensor], labels: torch.Tensor, size: int) -> torch.Tensor:
    flat = [logits.reshape(-1, logits.shape[-1]) for logits in chunks]
    targets = [target.reshape(-1) for target in labels.split(size, dim=1)]
    losses = [
        F.cross_entropy(logits, target, reduction="none")
        for logits, target in zip(flat, targets, strict=True)
    ]
    return torch.cat(losses).sum() / labels.numel()


def _trl(base: Any, hidden: Any, labels: Any, request: Request) -> torch.Tensor:
    """TRL's own autograd function (see `kernels_in_place`)."""
    import trl.kernels.chunked_logprob as kernel
    from trl.trainer.utils import _CHUNKED_LOGPROB_CHUNK_SIZE

    head = base.get_output_embeddings()
    with _says_autocast(request):
        log_probs = kernel.ChunkedLogProbFunction.apply(
            hidden.reshape(-1, hidden.shape[-1]),
            head.weight,
            head.bias,
            labels.clamp(min=0).reshape(-1),
            1.0,
            _CHUNKED_LOGPROB_CHUNK_SIZE,
            getattr(base.config, "final_logit_softcapping", None),
            1.0,
            ("entropy", "is_top1"),
        )[0]
    return -log_probs.sum() / labels.numel()


@contextlib.contextmanager
def _says_autocast(request: Request) -> Iterator[None]:
    """TRL's function asks torch for the autocast dtype, which meta tensors don't have."""
    if request.autocast is None:
        yield
        return
    dtype = torch.bfloat16 if request.autocast == "bf16" else torch.float16
    with (
        replaced(torch, "is_autocast_enabled", lambda *_: True),
        replaced(torch, "get_autocast_dtype", lambda *_: dtype),
    ):
        yield


@contextlib.contextmanager
def kernels_in_place(request: Request) -> Iterator[None]:
    """TRL's Triton folds work in place and allocate nothing; its torch stand-ins would."""
    if request.loss != "trl":
        yield
        return
    import trl.kernels.chunked_logprob as kernel

    with (
        replaced(kernel, "_forward_tile", lambda *_, **__: None),
        replaced(kernel, "_backward_tile", lambda *_, **__: None),
        replaced(kernel, "_use_triton", lambda _: False),
    ):
        yield


class _LigerLoss(torch.autograd.Function):
    """Allocations of liger_kernel's fused_linear_cross_entropy_forward/backward."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        tokens, width = hidden.shape
        vocabulary = weight.shape[0]
        factor = -(-vocabulary // width)
        chunk = 1 << (max(1, -(-tokens // factor)) - 1).bit_length()
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(tokens, dtype=torch.float32, device=hidden.device)
        for start in range(0, tokens, chunk):
            part = hidden[start : start + chunk]
            logits = part @ weight.t()
            grad_hidden[start : start + chunk] = logits @ weight
            if grad_weight is not None:
                grad_weight += torch.mm(logits.t(), part)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return tuple(ctx.saved_tensors)


def _liger(base: Any, hidden: Any, labels: Any, request: Request) -> torch.Tensor:
    head = base.get_output_embeddings()
    loss: torch.Tensor = _LigerLoss.apply(hidden.reshape(-1, hidden.shape[-1]), head.weight)
    return loss


def _litgpt(model: Any, request: Request) -> Forward:
    """litgpt's trees return logits, or a list of chunks; no mask ever reaches attention."""

    def forward(ids: Any, labels: Any, mask: Any) -> tuple[torch.Tensor, Any]:
        size = request.loss_chunk
        out = model(ids, size)
        if not size:
            flat = out.reshape(-1, out.shape[-1])
            return F.cross_entropy(flat[:-1], labels.reshape(-1)[1:]), out
        out[-1] = out[-1][..., :-1, :]
        return _chunk_losses(out, labels[:, 1:], size), out

    return forward
