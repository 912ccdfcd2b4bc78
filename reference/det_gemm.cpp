// SPDX-License-Identifier: Apache-2.0
// det_gemm: the product of matmul, for kernels whose bits of a row must not depend on the number of rows. It is a
// separate operator, so that a contract can require this of det_gemm but not of a library's matmul.
#include "matmul.hpp"

namespace checkop {

extern const Operator kDetGemm;
constexpr Operator kDetGemm{"det_gemm",  "reduction", "c = a b, the bits of a row the same for any batch",
                            "batch seq", {},          kMatmulPasses};

}  // namespace checkop
