"""Potential flow past car-like bodies: a stand-in for DrivAerML that a laptop can make.

    car = random_car(np.random.default_rng(0))
    flow = car_flow(car)                                 # flow.surface, flow.cp at its vertices, flow.forces
    points, cp, normals = flow.sample(40_000, rng)       # on the surface, uniform by area

Modules: `shape` (random bodies), `panels` (flow past any closed surface), `triangle` (source panel in closed form),
`flow` (pressure on a car, and the generator), `exact` (ellipsoids).
"""

from flare.physics.cars.flow import CarFlow, CarPotential, car_flow, pressure_coefficient
from flare.physics.cars.panels import PotentialFlow, solve
from flare.physics.cars.shape import Car, random_car

__all__ = ["Car", "CarFlow", "CarPotential", "PotentialFlow", "car_flow", "pressure_coefficient", "random_car", "solve"]
