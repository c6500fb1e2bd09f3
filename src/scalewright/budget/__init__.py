"""How large a model, how many tokens, and what it takes: scaling laws, and this cluster's own speed. No torch.

    one amount ──► laws.py: size, tokens ──► shape.py: a real model ──► solve.py: its layout and rate, by `plan`, until
    (amounts.py)                                                        size, rate and amount agree
                                        ──► answer.py: loss, cost, each with its band, the run file
    serve.py      the smaller, longer-trained model where serving is counted, too
    recipe.py     batch and learning rate by size
    ladder.py     small runs to fit a law of one's own to;  fit.py: the fit;  plot.py: its picture

Laws, recipes and published runs are data (`data/*.yaml`), each with its source and what it was fitted to.
"""

from scalewright.packages import make_callable

make_callable(__name__, "scalewright.api")
