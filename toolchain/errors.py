"""The one error that ends a run of the toolchain with a message instead of a traceback."""


class ToolchainError(Exception):
    """A step failed.

    Attributes:
        remedy: The next step, for the operator.
        evidence: The last lines of what the failed program printed.
    """

    def __init__(self, message: str, *, remedy: str, evidence: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy
        self.evidence = evidence
