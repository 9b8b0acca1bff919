"""Operations that torch calls non-deterministic are named, and nothing else is disturbed."""

from __future__ import annotations

import warnings

import pytest
import torch

from bench.worker.proof.determinism import Nondeterminism, named


def scattered() -> torch.Tensor:
    """`put_` without accumulation has no deterministic implementation, on a CPU either."""
    return torch.zeros(4).put_(torch.tensor([0, 1]), torch.ones(2))


def test_the_operation_is_named_once() -> None:
    watched = Nondeterminism(watch=True)
    watched.begin()
    scattered()
    scattered()
    watched.end()
    assert watched.ops == ["put_"]


def test_deterministic_work_names_nothing() -> None:
    watched = Nondeterminism(watch=True)
    watched.begin()
    torch.ones(3, 3, requires_grad=True).matmul(torch.ones(3)).sum().backward()
    watched.end()
    assert watched.ops == []


def test_settings_come_back_and_other_warnings_go_through() -> None:
    fill = torch.utils.deterministic.fill_uninitialized_memory
    watched = Nondeterminism(watch=True)
    watched.begin()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    with pytest.warns(UserWarning, match="something else"):
        warnings.warn("something else", UserWarning, stacklevel=1)
    watched.end()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory == fill
    with warnings.catch_warnings(record=True) as seen:
        scattered()
    assert not seen


def test_a_first_step_on_the_clock_is_not_watched() -> None:
    watched = Nondeterminism(watch=False)
    watched.begin()
    assert not torch.are_deterministic_algorithms_enabled()
    watched.end()
    assert watched.ops is None


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("kthvalue CUDA does not have a deterministic implementation, but", "kthvalue CUDA"),
        (
            "Flash Attention defaults to a non-deterministic algorithm. To explicitly enable",
            "Flash Attention",
        ),
        (
            "Deterministic behavior was enabled with either `torch.use_deterministic_algorithms"
            "(True)` or …, but this operation is not deterministic because it uses CuBLAS and",
            "cuBLAS without a fixed workspace",
        ),
        ("a tensor was copied", None),
    ],
)  # fmt: skip
def test_what_torch_says(message: str, name: str | None) -> None:
    assert named(message) == name
