"""The parts of a step, one term each: what every table, sentence and reason calls them.

"exposed" is communication that nothing hides: time in which a device waits for it.
"""

PART_TERMS = {
    "compute": "compute",
    "recompute": "recomputation",
    "tp_exposed": "tensor parallel, exposed",
    "dp_exposed": "data parallel, exposed",
    "cp_exposed": "context parallel, exposed",
    "ep_exposed": "expert parallel, exposed",
    "pp_bubble": "pipeline bubble",
    "pp_exposed": "pipeline messages, exposed",
    "optimizer": "optimizer",
    "other": "host and stragglers",
}
