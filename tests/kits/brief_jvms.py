"""Importing this module has simulators start sooner, as tests play short episodes.

Their JVMs compile once, and not again for the best code that there is, which hours of play would repay.
"""

from comap.envs.scienceworld import backends

QUICK_COMPILER = "-XX:TieredStopAtLevel=1"

backends.FLAGS = (*backends.FLAGS, QUICK_COMPILER)
