"""Messages that name the thing that is there."""
from case import Case, Run

CASES = [
    Case("small_messages", "src_mlx", [Run("inspect SRC", 0)]),
]
