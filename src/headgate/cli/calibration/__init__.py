"""What ``headgate calibrate`` measures: this machine's memory, box calls, and operators alone.

``headgate.machine.calibration`` is the file that it writes.
"""
