// SPDX-License-Identifier: Apache-2.0
// det_gemm: the product of matmul, by kernels whose bits of a row do not depend on how many rows there are. An operator
// of its own, so that a contract can demand that of det_gemm where it lets a library's matmul off.
#include "matmul.hpp"

namespace checkop {

extern const Operator kDetGemm;
constexpr Operator kDetGemm{"det_gemm",  "reduction", "c = a b, the bits of a row the same for any batch",
                            "batch seq", {},          kMatmulPasses};

}  // namespace checkop
