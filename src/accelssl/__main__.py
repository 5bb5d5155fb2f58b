"""python -m accelssl"""

from accelssl.cli import main

main()
