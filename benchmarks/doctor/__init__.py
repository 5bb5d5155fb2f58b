"""`accelssl doctor`: is everything here, does it give the right result, and is it fast enough?"""
