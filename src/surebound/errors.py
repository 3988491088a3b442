"""Every error a user can cause, in one tree.

    SureboundError
    ├── UsageError              an argument, option or value that makes no sense
    │   └── MissingFileError    a path that is not there or cannot be read
    ├── NetworkError            a network that cannot be loaded
    │   └── UnsupportedOpError  an operation outside the supported set
    ├── PropertyError           a property that cannot be read or does not fit the network
    ├── TrainingError           a training run that cannot go on
    ├── StoreError              a file of results that cannot be read or written
    └── ResourceError           memory or disk ran out in a way that could not be avoided

Each message is one sentence that names the thing, what it got and what was expected. The command line prints it and
exits with code 2; anything outside this tree is a bug in surebound.
"""


class SureboundError(Exception):
    """Base of all errors that surebound raises on purpose."""


class UsageError(SureboundError):
    """An argument or option that makes no sense."""


class MissingFileError(UsageError):
    """A path that does not exist or cannot be read."""


class NetworkError(SureboundError):
    """A network that cannot be loaded."""


class UnsupportedOpError(NetworkError):
    """An operation outside the supported set."""


class PropertyError(SureboundError):
    """A property that cannot be read or does not fit the network."""


class TrainingError(SureboundError):
    """A training run that cannot go on."""


class StoreError(SureboundError):
    """A file of results that cannot be read or written."""


class ResourceError(SureboundError):
    """Memory or disk ran out."""
