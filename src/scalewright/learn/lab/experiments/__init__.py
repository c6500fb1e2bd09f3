"""One file a lab: `run(bench)` measures, and puts each number beside its formula's."""
