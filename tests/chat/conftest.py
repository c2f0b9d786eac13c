"""Property tests draw the same examples each time, and are not judged by the speed of the machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "longstep", max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("longstep")
