// SPDX-License-Identifier: Apache-2.0
// At which number of rows something changes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace checkop {

/// The smallest number of rows, of 2 to n, that differs() is true of; 0 where none was found. Powers of two bracket the
/// first change: kernels seldom go back to what they did before.
int64_t smallest_that_differs(int64_t n, const std::function<bool(int64_t)>& differs);

/// Variants by the number of rows that they ran for: adds numbers until wherever the variant changes, both neighbours
/// are known. variant_at(rows) asks for one more; nullopt: that can't be told, and the gap stays.
void find_boundaries(std::map<int64_t, std::string>& variants,
                     const std::function<std::optional<std::string>(int64_t)>& variant_at);

}  // namespace checkop
