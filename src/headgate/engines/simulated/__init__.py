"""The simulated engine: the same network, policy and operators in virtual time."""

from headgate.engines.simulated.engine import Simulated

__all__ = ["Simulated"]
