"""Types of arrays and tables that all folders of the package share."""

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
"""Vector to use for the last layer: its block's output, or the head's input."""
Table: TypeAlias = "pd.DataFrame"
"""Type of a pandas table, named here so that pandas is loaded only where a table is made."""
