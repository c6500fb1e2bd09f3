"""Words for the keys of an answer: the parts of a step, and the risk of running out of memory.

PART_TERMS   keys of `time_breakdown_s`; the terms are those of spec/step_parts.py
RISK_TERMS   values of `risk`, of a prediction and of a dry run
"""

from scalewright.spec.step_parts import FINER, PARTS

KEYS = (
    "compute", "recompute", "tp_exposed", "dp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed",
    "optimizer", "other",
)  # fmt: skip
PART_TERMS = {key: FINER.get(key) or PARTS[key.removesuffix("_exposed")] for key in KEYS}
RISK_TERMS = {"fits": "fits", "likely": "likely to fit", "unlikely": "unlikely to fit", "no": "does not fit"}
