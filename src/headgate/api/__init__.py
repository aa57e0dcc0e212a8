"""The pipeline as people write it: ``App``, streams, and what they are made of.

Every method checks what it is given there and then, against the schemas known so far, and adds boxes to
the network; running it is the engines' business.
"""

from headgate.api.app import App
from headgate.api.streams import KeyedStream, Stream, WindowedStream

__all__ = ["App", "KeyedStream", "Stream", "WindowedStream"]
