"""The rules of thumb of training: FLOPs from parameters and tokens, time from FLOPs, utilisation from time.

    forward 2 N, backward 4 N a token                   training     6 N D
    with the forward once more (full recomputation)                  8 N D
    and attention, over the full square                 PaLM         6 N + 12 L H Q T a token

N parameters, D tokens, L layers, H Q width of all query heads, T sequence length. Kaplan et al. 2020 §2.1;
Chowdhery et al. 2022, appendix B; Narayanan et al. 2021 §5.1. Sources differ in which parameters N counts
(with or without embeddings), so N is an argument; `training.py` counts from a model's operators instead.
FLOPs, FLOP/s of one device, seconds; shares are between 0 and 1.
"""

from __future__ import annotations

FORWARD, BACKWARD = 2, 4  # FLOPs per parameter and token


def training_flops(parameters: float, tokens: float = 1.0, recompute: bool = False) -> float:
    """FLOPs of training: 6 N D, or 8 N D when every forward is done twice."""
    return (FORWARD + BACKWARD + (FORWARD if recompute else 0)) * parameters * tokens


def palm_flops(
    parameters: float, tokens: float = 1.0, layers: int = 0, width: int = 0, seq_len: int = 0, causal: bool = False
) -> float:
    """6 N + 12 L H Q T a token (PaLM, appendix B); `causal` counts half of attention, as DeepSeek does.

    `width`: query heads x their dimension, H Q; the hidden size d in most models.
    """
    attention = 12 * layers * width * seq_len
    return tokens * (training_flops(parameters) + (attention / 2 if causal else attention))


def training_seconds(
    parameters: float, tokens: float, peak: float, devices: int = 1, utilization: float = 1.0, recompute: bool = False
) -> float:
    """Seconds of a run at a share `utilization` of `peak`; 8 N D over what devices reach is Megatron's rule.

    Narayanan et al. 2021, eq. 4: T P 8 / (n X) with X the FLOP/s reached, recomputation counted.
    """
    return training_flops(parameters, tokens, recompute) / (devices * peak * utilization)


def utilization(flops: float, seconds: float, peak: float, devices: int = 1) -> float:
    """The share of `devices` peaks that `flops` in `seconds` is; MFU for model FLOPs, HFU for all of them."""
    return flops_per_s(flops, seconds, devices) / peak


def flops_per_s(flops: float, seconds: float, devices: int = 1) -> float:
    """FLOP/s that each device reached; with device-seconds, leave `devices` at 1."""
    return flops / (seconds * devices)


def delivered_flops(peak: float, seconds: float, devices: int = 1, utilization: float = 1.0) -> float:
    """FLOPs that devices do in a time; at utilisation 1, those that they could have done."""
    return peak * seconds * devices * utilization


def run_mfu(parameters: float, tokens: float, device_hours: float, peak: float) -> float:
    """MFU of a whole run, 6 N D over what its device-hours could have done."""
    return utilization(training_flops(parameters, tokens), device_hours * 3600, peak)


def mfu(
    tokens_per_s: float,
    parameters: float,
    peak: float,
    devices: int = 1,
    layers: int = 0,
    width: int = 0,
    seq_len: int = 0,
    causal: bool = False,
) -> float:
    """Model FLOPs utilisation of a throughput by PaLM's rule; without layers, by 6 N alone."""
    return utilization(palm_flops(parameters, tokens_per_s, layers, width, seq_len, causal), 1.0, peak, devices)


def hfu(
    tokens_per_s: float,
    parameters: float,
    peak: float,
    devices: int = 1,
    layers: int = 0,
    width: int = 0,
    seq_len: int = 0,
) -> float:
    """Hardware FLOPs utilisation under full recomputation: the forward, attention too, is done twice."""
    again = (FORWARD + BACKWARD + FORWARD) / (FORWARD + BACKWARD)
    return again * mfu(tokens_per_s, parameters, peak, devices, layers, width, seq_len)


def throughput_seconds(tokens: float, tokens_per_s: float, devices: int = 1) -> float:
    """Seconds until `devices` have seen `tokens` at `tokens_per_s` each; device-seconds with one device."""
    return tokens / (tokens_per_s * devices)


def wall_seconds(device_seconds: float, devices: int) -> float:
    """Seconds on the clock of a run's device-seconds, if all devices are busy all the time."""
    return device_seconds / devices


def batch_tokens(sequences: float, seq_len: float, replicas: int = 1) -> float:
    """Tokens of a step whose `replicas` see `sequences` each."""
    return sequences * seq_len * replicas


def batch_sequences(tokens: float, seq_len: float) -> float:
    """Sequences in a batch of so many tokens."""
    return tokens / seq_len


def tokens_per_device(tokens: float, devices: float, seq_len: float = 1.0) -> float:
    """Tokens of a step for each device; with `seq_len`, `tokens` counts sequences of that length."""
    return batch_tokens(tokens, seq_len) / devices


def flops_per_price(peak: float, price_per_hour: float) -> float:
    """FLOPs that one unit of currency buys at full peak."""
    return delivered_flops(peak, 3600.0) / price_per_hour
