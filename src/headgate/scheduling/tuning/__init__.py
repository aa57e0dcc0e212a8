"""Policies around policies that find a setting while they run: workers, trains, packet size."""
