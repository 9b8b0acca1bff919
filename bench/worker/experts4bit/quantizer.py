"""The hook in transformers' loading: fused experts are quantised as each one arrives.

transformers merges and concatenates a checkpoint's experts into one fused tensor at a time; this
quantises that tensor before the next one is read, so the whole model never exists in 16 bit.  The
packed tensors stay 3-D on purpose: sharded loading tells "one checkpoint tensor is one expert" by
the number of dimensions.
"""

from __future__ import annotations

from typing import Any

from transformers.core_model_loading import ConversionOps
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name

from bench.errors import UserError
from bench.worker.experts4bit import packing
from bench.worker.experts4bit.linear import Layout
from bench.worker.experts4bit.module import PROJECTIONS, STATS, Experts4bit, convert, refusals


class Experts4bitQuantizer(Bnb4BitHfQuantizer):
    """bitsandbytes' own quantiser, which also takes fused experts."""

    # transformers' own two signatures differ
    def _process_model_before_weight_loading(  # type: ignore[override]
        self, model: Any, device_map: Any, **kwargs: Any
    ) -> None:
        super()._process_model_before_weight_loading(model, device_map=device_map, **kwargs)
        if reasons := refusals(model):
            raise UserError(
                f"{model.config.model_type}: its experts can't be held in 4 bit: "
                f"{'; '.join(reasons)}: use LoRA"
            )
        config = self.quantization_config
        layout = Layout(config.bnb_4bit_quant_type, config.bnb_4bit_compute_dtype)
        convert(model, layout, config.bnb_4bit_use_double_quant, empty=True)

    def param_needs_quantization(self, model: Any, param_name: str, **kw: Any) -> bool:
        module, name = get_module_from_name(model, param_name)
        if isinstance(module, Experts4bit):
            return name in PROJECTIONS and not self.pre_quantized
        return super().param_needs_quantization(model, param_name, **kw)

    def param_element_size(self, model: Any, param_name: str, param: Any) -> float:
        module, _ = get_module_from_name(model, param_name)
        if isinstance(module, Experts4bit):
            return 1.0  # the parameter is packed already
        return super().param_element_size(model, param_name, param)

    def get_quantize_ops(self) -> Any:
        return _Quantize(self, super().get_quantize_ops())

    def update_device_map(self, device_map: Any) -> Any:
        """ZeRO-3 forbids a device map of the user's, and bitsandbytes' default would put the whole
        model on every GPU: there it starts on the host."""
        if device_map is None and is_deepspeed_zero3_enabled():
            return {"": "cpu"}
        return super().update_device_map(device_map)


class _Quantize(ConversionOps):
    """Runs after the checkpoint's own merging: one fused tensor in, codes and scales out."""

    def __init__(self, hf_quantizer: Any, linear: Any) -> None:
        self.hf_quantizer = hf_quantizer
        self.linear = linear

    def convert(self, input_dict: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        model = kwargs["model"]
        result: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for name, value in input_dict.items():
            module, _ = get_module_from_name(model, name)
            if not isinstance(module, Experts4bit):
                rest[name] = value
                continue
            weights = value[0] if isinstance(value, list) else value
            result[name], result[name + STATS] = packing.quantize(
                weights, module.double_quant, module.layout.quant_type
            )
        if rest:
            result |= self.linear.convert(rest, *args, **kwargs)
        return result


def install() -> None:
    """From now on `BitsAndBytesConfig(load_in_4bit=True)` quantises fused experts too.

    transformers' own `register_quantizer` refuses a name that is taken.
    """
    AUTO_QUANTIZER_MAPPING["bitsandbytes_4bit"] = Experts4bitQuantizer
