"""`flare info`: show versions, devices and the mixer in use."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse


def run(words: Sequence[str]) -> None:
    """Run `flare info`."""
    parse(make_parser("info", "Show versions, devices and the mixer in use."), words)
    from flare import physics, sequence
    from flare.mixer import BACKENDS, choose
    from flare.mixer.native import library
    from flare.models import MODELS
    from flare.train.presets import preset_names
    from flare.utils.environment import describe_environment

    facts = describe_environment()
    backend, reason = choose()
    facts["mixer"] = f"{backend}: {reason}"
    if backend == "native":
        facts["kernels"] = library.describe_build(library.kernels())
    facts |= {
        "mixer backends": ", ".join(BACKENDS),
        "models": ", ".join(MODELS),
        "generators": ", ".join([*physics.GENERATORS, *sequence.GENERATORS]),
        "presets": ", ".join(preset_names()),
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
