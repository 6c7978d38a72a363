"""`flare data make`: generate a dataset with a solver, or sequences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from flare.cli import make_parser, parse
from flare.cli.data import chosen_name, show_dataset
from flare.utils.errors import ConfigError, suggest_name
from flare.utils.registry import import_attribute


def run(words: Sequence[str]) -> int:
    """Run `flare data make`."""
    from flare import physics, sequence
    from flare.data.generation.generate import generate
    from flare.sequence import store

    known = [*physics.GENERATORS, *sequence.GENERATORS]
    name = chosen_name(words, known, "make NAME ...")
    if name is None:
        return 0
    if name not in known:
        raise ConfigError(f"unknown dataset {name!r}; {suggest_name(name, known)}")
    is_sequence = name in sequence.GENERATORS
    generator: Any = import_attribute(sequence.GENERATORS[name]) if is_sequence else physics.generator_class(name)
    parser = make_parser(
        f"data make {name}", f"Generate the {name} dataset. Run the same command again to resume a stopped job."
    )
    names = ["samples", "test_samples", "seed", "workers", "scheduler"]
    parser.add_argument("-o", "--out", default=f"data/{name}", help="folder to write")
    total = generator.samples if is_sequence else 1200
    parser.add_argument("--samples", type=int, default=total, help="number of all samples")
    share = "as in the benchmark" if is_sequence else "a sixth"
    parser.add_argument("--test-samples", type=int, help=f"number of test samples, the last ones; default {share}")
    if is_sequence:
        parser.add_argument("--val-samples", type=int, help=f"number of validation samples; default {share}")
        names.append("val_samples")
    parser.add_argument("--seed", type=int, default=0, help="sample i depends on (seed, i) alone")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes; the bytes do not depend on it"
    )
    parser.add_argument("--scheduler", help="address of a dask scheduler to use instead, such as tcp://10.0.0.1:8786")
    parser.add_class_arguments(generator, None)
    given = parse(parser, words[1:]).as_dict()
    out, job = given.pop("out"), {key: given.pop(key) for key in names}
    make: Any = store.generate_sequences if is_sequence else generate
    return show_dataset(make(generator(**given), out, **job))
