// SPDX-License-Identifier: Apache-2.0
// Finds batch sizes at which something changes, by bisection.
#include "run/invariance/bisect.hpp"

#include <algorithm>
#include <iterator>

namespace checkop {

int64_t smallest_that_differs(int64_t n, const std::function<bool(int64_t)>& differs) {
  int64_t same = 1, different = 0;
  for (int64_t rows = std::min<int64_t>(2, n); different == 0; rows = std::min(2 * rows, n)) {
    (differs(rows) ? different : same) = rows;
    if (rows == n) break;
  }
  if (different == 0) return 0;
  while (different - same > 1) {
    const int64_t middle = same + (different - same) / 2;
    (differs(middle) ? different : same) = middle;
  }
  return different;
}

void find_boundaries(std::map<int64_t, std::string>& variants,
                     const std::function<std::optional<std::string>(int64_t)>& variant_at) {
  if (variants.empty()) return;
  for (auto low = variants.begin(); std::next(low) != variants.end();) {
    const auto high = std::next(low);
    const int64_t middle = low->first + (high->first - low->first) / 2;
    std::optional<std::string> between;
    if (low->second != high->second && middle > low->first) between = variant_at(middle);
    if (between) {
      variants.emplace(middle, *between);  // the next gap begins at `low` again
    } else {
      ++low;
    }
  }
}

}  // namespace checkop
