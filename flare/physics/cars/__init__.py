"""Potential flow past car-like bodies: a stand-in for DrivAerML that a laptop can make.

    car = random_car(np.random.default_rng(0))
    flow = car_flow(car)                                 # flow.surface, flow.cp at its vertices, flow.forces
    points, cp, normals = flow.sample(40_000, rng)       # on the surface, uniform by area

Modules: `shape` (random bodies), `panels` (flow past any closed surface), `triangle` (source panel in closed form),
`flow` (pressure on a car), `exact` (ellipsoids), `dataset` (the generator).
"""

from flare.physics.cars.dataset import CarPotential as CarPotential
from flare.physics.cars.flow import CarFlow as CarFlow
from flare.physics.cars.flow import car_flow as car_flow
from flare.physics.cars.flow import pressure_coefficient as pressure_coefficient
from flare.physics.cars.panels import PotentialFlow as PotentialFlow
from flare.physics.cars.panels import solve as solve
from flare.physics.cars.shape import Car as Car
from flare.physics.cars.shape import random_car as random_car
