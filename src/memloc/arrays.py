"""Types of arrays and tables that all rooms share."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
Vectors: TypeAlias = NDArray[np.float32]
"""Vectors of texts, (examples, layers 0..L, width); layer 0 is the first block's input."""
LastLayer: TypeAlias = Literal["block output", "final norm"]
"""The vector of the last layer: what its block returns, or what the head is given."""
Table: TypeAlias = "pd.DataFrame"
"""Named here, as pandas is loaded only where a table is made."""
