// SPDX-License-Identifier: Apache-2.0
// Finds batch sizes at which something changes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace checkop {

/// The smallest number of rows from 2 to n for which differs() is true; 0 if none was found. Doubles the rows up to the
/// first change, then bisects: kernels seldom return to an earlier behaviour.
int64_t smallest_that_differs(int64_t n, const std::function<bool(int64_t)>& differs);

/// `variants` maps numbers of rows to the variant that ran. Adds numbers by bisection until, at each change of variant,
/// both neighbouring numbers are known. variant_at(rows) runs one more; if it returns nullopt, the gap stays.
void find_boundaries(std::map<int64_t, std::string>& variants,
                     const std::function<std::optional<std::string>(int64_t)>& variant_at);

}  // namespace checkop
