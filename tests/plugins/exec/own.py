# SPDX-License-Identifier: Apache-2.0
"""An operator that check_operator does not know: y = 2 a, in fp32."""
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "python"))
from check_operator.serving import serve

serve({"doubling/forward": lambda a: np.float32(2) * a})
