"""Error of the gradients of compressed views, and schedules chosen by that error."""
