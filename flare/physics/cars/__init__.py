"""Potential flow past car-like bodies: a stand-in for DrivAerML that a laptop can make.

    car = random_car(np.random.default_rng(0))
    flow = past(car)                                     # flow.surface, flow.cp at its vertices, flow.drag
    points, cp, normals = flow.sample(40_000, rng)       # on the surface, evenly by area

`shape` draws bodies; `panels` solves for the flow past any closed surface, with the sources of `triangle`; `flow` gives
the pressure on a car; `dataset` makes the stand-in.
"""

from flare.physics.cars.dataset import CarPotential as CarPotential
from flare.physics.cars.flow import CarFlow as CarFlow
from flare.physics.cars.flow import past as past
from flare.physics.cars.flow import pressure_coefficient as pressure_coefficient
from flare.physics.cars.panels import Flow as Flow
from flare.physics.cars.panels import solve as solve
from flare.physics.cars.shape import Car as Car
from flare.physics.cars.shape import random_car as random_car
