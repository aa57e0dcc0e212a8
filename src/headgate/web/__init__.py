"""The page: a running application seen and changed in a browser, its metrics, and its health."""
