"""Names for kinds of numpy arrays; shapes stand where they are used."""

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[np.generic]
Array = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]
