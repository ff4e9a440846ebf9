"""Options of the language model; kept apart so that they can be read before numpy and torch are loaded."""

import copy


def add_arguments(arguments):
    """Add the options of model and data."""
    arguments.add_argument("--vocab", type=int, default=100_000, help="rows of both tables")
    arguments.add_argument("--width", type=int, default=128, help="embedding and projection width")
    arguments.add_argument("--hidden", type=int, default=256)
    arguments.add_argument("--samples", type=int, default=1024, help="sampled classes per step and rank")
    arguments.add_argument("--batch", type=int, default=32, help="sequences per rank")
    arguments.add_argument("--steps", type=int, default=20, help="words per sequence and step")
    arguments.add_argument("--zipf", type=float, default=1.1, help="exponent of the drawn words' frequencies")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--steps-per-rep", type=int, default=5, help="training steps in one repetition")


def small(options):
    """Return the options of a model small enough to be checked against one process."""
    result = copy.copy(options)
    result.vocab, result.width, result.hidden, result.samples = 300, 8, 16, 32
    result.batch, result.steps = 4, 5
    return result


def parameters_of(options):
    """Return the part of the options that goes into the JSON line."""
    names = ("vocab", "width", "hidden", "samples", "batch", "steps", "threads", "seed")
    result = {name: getattr(options, name) for name in names}
    result["data"] = f"zipf {options.zipf}"
    return result
