"""llama.cpp's own files: the format that was priced in its words, and how a Hugging Face folder becomes one.

    meta-llama/Llama-3.1-8B ──convert_hf_to_gguf.py──► NAME-bf16.gguf ──llama-quantize──► NAME-q4_k_m.gguf

`convert` writes the folder. Formats as of llama.cpp at commit 00dc8057 (convert_hf_to_gguf.py, tools/quantize), MIT.
"""

from __future__ import annotations

from scalewright.emit.serving.deployment import Deployment, Report
from scalewright.spec.common.shell import Expression, Word, command

WRITTEN = {"fp32": "f32", "bf16": "bf16", "q8_0": "q8_0", "mxfp4": "auto"}  # by convert_hf_to_gguf.py, --outtype
QUANTISED = {"q4_0": "Q4_0", "q4_k_m": "Q4_K_M"}  # by llama-quantize, from bf16
NEAR = {"fp8": "q8_0", "int8": "q8_0", "int8-weights": "q8_0", "int4": "q4_0", "uint4": "q4_0", "fp4": "q4_0"}
CONVERTER = Expression("${LLAMA_CPP:-llama.cpp}/convert_hf_to_gguf.py")


def is_gguf(name: str) -> bool:
    """Whether it is a file of llama.cpp's already."""
    return name.endswith(".gguf")


def kind(d: Deployment) -> str:
    """The format of its weights."""
    return NEAR.get(d.precision, d.precision)


def file(d: Deployment) -> str:
    """What llama-server loads."""
    return d.checkpoint if is_gguf(d.checkpoint) else f"{d.name}-{kind(d)}.gguf"


def report_format(d: Deployment, report: Report) -> None:
    """What is another format than was priced, or is taken as given."""
    if is_gguf(d.checkpoint):
        report.assume(f"the weights of {d.checkpoint} are in {d.precision}, as was priced")
    elif d.precision in NEAR:
        why = "llama.cpp has formats of its own: price that one (--engine llama.cpp --precision)"
        report.change("precision", d.precision, kind(d), why)
    if d.stored is None and not is_gguf(d.checkpoint):
        known = "the converter knows published tokenizers alone"
        report.assume(f"{known}: tell it in get_vocab_base_pre that those of `prepare` cut texts as gpt-2's")


def conversion(d: Deployment) -> list[str]:
    """Lines of a script that make the file, where it isn't there; none for one that was given."""
    if is_gguf(d.checkpoint):
        return []
    final, made = file(d), kind(d)
    first = final if made in WRITTEN else f"{d.name}-bf16.gguf"
    outtype = WRITTEN.get(made, "bf16")
    steps: list[list[Word]] = [["python", CONVERTER, d.checkpoint, "--outtype", outtype, "--outfile", first]]
    if made in QUANTISED:
        steps.append(["llama-quantize", first, final, QUANTISED[made]])
    test = f"[ -d {command([d.checkpoint])} ] || "
    fetched = [] if d.checkpoint.startswith(("/", ".")) else [
        test + command(["hf", "download", d.checkpoint, "--local-dir", d.checkpoint])
    ]  # fmt: skip
    lines = [*fetched, *map(command, steps)]
    return [
        "# once; LLAMA_CPP is a checkout of llama.cpp",
        f"if [ ! -e {command([final])} ]; then",
        *("  " + line.replace("\n", "\n  ") for line in lines),
        "fi",
    ]
