// SPDX-License-Identifier: Apache-2.0
// Recipes: points at which kernels in use round an intermediate value that the gold keeps exact, and the error that
// such a rounding may add.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "tensor/dtype.hpp"

namespace checkop {

/// A rounding point of a pass. A contract grants it by name; a kernel that rounds there is then held to the gold with
/// that rounding.
struct Recipe {
  std::string_view name;     ///< "p_in_16_bit"; 16 bit: the dtype of the case, bf16 or fp16
  std::string_view outputs;  ///< outputs of the pass that it changes, "dq dk"; no other output is judged differently
  std::string_view dtypes;   ///< dtypes of the cases in which kernels have it, "bf16 fp16"
  /// true: the gold rounds at the same point. false: the rounded value depends on the kernel's order of work, so the
  /// gold stays as it is and its coefficients grow by what the roundings may add.
  bool exact;
  std::string_view formula;        ///< "o = sum_j round(p_j) v_j"
  std::string_view source;         ///< kernels that round there
  std::string_view excludes = "";  ///< recipes of the same pass that no kernel has together with this one
  /// For an allowance: a lower bound on how many errors of an output's elements are independent. "": all of them. Dims
  /// such as "batch q_heads q_seq": one per row (the last dimension), and in all no more than the product of these
  /// dims.
  std::string_view independent = "";
  /// Of an allowance: the gold rounds, too, where the roundings are too large to be allowed for.
  bool rounds_large = false;
  /// Optional inputs and attributes, "temperature softcap": where none of them is present or differs from its fallback,
  /// there is nothing to round. "": there always is.
  std::string_view needs = "";

  /// Whether this recipe changes the gold's values, not only their bounds.
  bool changes_gold() const { return exact || rounds_large; }
};

inline constexpr std::string_view kTf32Operands = "tf32_operands";   ///< of matrix products, whatever their operator
inline constexpr std::string_view kPartials = "partials_in_16_bit";  ///< of matrix products that are split along k
inline constexpr std::string_view k16Bit = "bf16 fp16";              ///< Recipe::dtypes of most

/// A rounded value, and how far a kernel's rounded value may be from it.
struct Rounded {
  double value;
  double slack;  ///< 0 unless the exact value lies so near to a tie that a kernel may round it to the other side
};

/// The error that roundings of a sum's terms may add: the largest (`most`) and its standard deviation. These roundings
/// have no bias.
struct Spread {
  double most = 0, deviation = 0;
};

/// The recipes in force while a gold computes, and the numbers by which they are judged.
class ActiveRecipes {
 public:
  /// Numbers of one output's bound; see element_bound().
  struct Numbers {
    double growth = 0, lambda = 0;
    auto operator<=>(const Numbers&) const = default;
  };

  ActiveRecipes() = default;
  /// `dtype` is that of the case, `unit` the unit roundoff of the arithmetic, `numbers` in the order of the outputs.
  /// `equal_inputs`: all elements of a tensor are equal.
  ActiveRecipes(std::vector<std::string_view> names, DType dtype, double unit, std::vector<Numbers> numbers,
                bool equal_inputs = false)
      : names_(std::move(names)),
        dtype_(dtype),
        smallest_normal_(std::ldexp(1.0, info(dtype).min_exponent)),
        unit_(unit),
        numbers_(std::move(numbers)),
        equal_inputs_(equal_inputs) {}

  bool has(std::string_view name) const { return std::find(names_.begin(), names_.end(), name) != names_.end(); }
  bool none() const { return names_.empty(); }
  const std::vector<std::string_view>& names() const { return names_; }
  const std::vector<Numbers>& numbers() const { return numbers_; }

  /// x rounded to the dtype of the case, where a kernel computes x with the error coefficients `magnitude` and
  /// `rounding`; see GoldRows.
  Rounded round(int output, double x, double magnitude, double rounding) const;
  /// x rounded to the dtype of the case, where every kernel has the same x: a stored value, or a product of two stored
  /// values of 16 bits, which fp32 holds.
  double round(double x) const;

  /// x rounded to the 11 bits of TF32, ties to even, as cuBLAS does (seen on an H200: 1 + 2^-11 becomes 1).
  static double round_to_tf32(double x);

  double case_unit() const { return unit_roundoff(dtype_); }
  /// |x|, but at least the smallest normal number of the dtype of the case. Times case_unit() it bounds the error of
  /// rounding x, even if x is subnormal in that dtype, or 0 and a kernel computes a tiny number.
  double size(double x) const { return std::max(std::abs(x), smallest_normal_); }

  /// An absolute error as a coefficient of the unit roundoff, for GoldRows::rounding.
  double in_units(double error) const { return error / unit_; }
  /// For a sum of terms t that are each rounded to the dtype of the case before they are added:
  ///   deviation = u_case*sqrt(sum t^2/3),  most = min(lambda*deviation, u_case*sum |t|)
  /// Rounding to nearest errs by at most u_case*|t|, spread at least as evenly as a uniform error; so the error of the
  /// sum is sub-Gaussian with this deviation, and exceeds lambda of it with probability 2*exp(-lambda^2/2) at most.
  /// Equal terms have equal errors: then both are u_case*sum |t|. Equal inputs make all terms equal.
  /// Source: Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41
  /// (2019).
  Spread of_terms(int output, double squares, double sizes, bool equal = false) const {
    const double most = case_unit() * sizes, deviation = case_unit() * std::sqrt(squares / 3);
    if (equal || equal_inputs_) return {most, most};
    return {std::min(lambda(output) * deviation, most), deviation};
  }
  /// The largest error of a sum whose terms may err by at most d each, independently: min(lambda*sqrt(sum d^2), sum d).
  double of_errors(int output, double squares, double sizes) const {
    return equal_inputs_ ? sizes : std::min(lambda(output) * std::sqrt(squares), sizes);
  }

 private:
  double lambda(int output) const { return numbers_[static_cast<size_t>(output)].lambda; }

  std::vector<std::string_view> names_;
  DType dtype_ = DType::f32;
  double smallest_normal_ = std::ldexp(1.0, info(DType::f32).min_exponent);  ///< of dtype_
  double unit_ = 1;
  std::vector<Numbers> numbers_;
  bool equal_inputs_ = false;
};

}  // namespace checkop
