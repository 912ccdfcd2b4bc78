// SPDX-License-Identifier: Apache-2.0
// Hashes blocks of tensors word by word in parallel, then combines the block hashes in order.
#include "tensor/digest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/parallel.hpp"
#include "base/text.hpp"

namespace checkop {
namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;

uint64_t block_hash(const std::byte* data, size_t bytes) {
  uint64_t hash = 0x9e3779b97f4a7c15ull ^ bytes;
  for (size_t at = 0; at < bytes; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<size_t>(8, bytes - at));
    hash = (hash ^ word) * 0xff51afd7ed558ccdull;  // odd, so each step is a bijection of the state
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

std::string tensor_digest(const std::vector<Tensor>& tensors, unsigned threads) {
  std::string all;
  for (const Tensor& tensor : tensors) {
    all += fmt::format("{}|{}|{}|", tensor.name, info(tensor.dtype).name, to_string(tensor.shape));
    const size_t bytes = tensor.bytes.size(), blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
    std::vector<uint64_t> hashes(blocks);
    parallel_for(threads, static_cast<int64_t>(blocks), [&](int64_t block) {
      const size_t begin = static_cast<size_t>(block) * kBlockBytes;
      hashes[static_cast<size_t>(block)] =
          block_hash(tensor.bytes.data() + begin, std::min(kBlockBytes, bytes - begin));
    });
    for (const uint64_t hash : hashes) all += fmt::format("{:016x}", hash);
  }
  return fnv1a_hex(all);
}

}  // namespace checkop
