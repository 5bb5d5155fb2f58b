"""The exception for faulty input; its message says what to do."""


class UserError(Exception):
    """Bad input: the fault in the values, then the remedy. The command line exits with 2.

    Raise it for anything a user can cause (paths, options, files, sizes). Anything else that goes
    wrong is a bug of ours and keeps its traceback.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what} {remedy}")
        self.what = what
        self.remedy = remedy

    def __reduce__(self) -> tuple[type["UserError"], tuple[str, str]]:
        return type(self), (self.what, self.remedy)  # worker processes send it back pickled
