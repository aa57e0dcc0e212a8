"""Haren (Palyvos-Giannas et al., DEBS 2019): a policy from two functions over features, in two phases."""
