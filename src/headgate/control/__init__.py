"""A running application from outside: its socket, the commands it answers, and live change."""
