// SPDX-License-Identifier: Apache-2.0
// The digest of tensors.
#include <gtest/gtest.h>

#include "tensor/digest.hpp"

namespace checkop::digest_test {
namespace {

std::vector<Tensor> two_tensors() {
  std::vector<Tensor> tensors;
  tensors.emplace_back("x", DType::f32, Shape{1000, 1000});  // four blocks
  tensors.emplace_back("y", DType::u8, Shape{3});
  return tensors;
}

TEST(Digest, DoesNotDependOnThreads) { EXPECT_EQ(tensor_digest(two_tensors(), 1), tensor_digest(two_tensors(), 7)); }

TEST(Digest, SeesEveryByteNameTypeAndShape) {
  const std::string before = tensor_digest(two_tensors(), 2);
  EXPECT_EQ(before.size(), 16u);
  for (const int64_t index : {int64_t{0}, int64_t{262144}, int64_t{999999}}) {
    auto tensors = two_tensors();
    tensors[0].set(index, 1);
    EXPECT_NE(tensor_digest(tensors, 2), before) << index;
  }
  auto tensors = two_tensors();
  tensors[1].set(2, 1);
  EXPECT_NE(tensor_digest(tensors, 2), before);
  tensors = two_tensors();
  tensors[1].name += "renamed";
  EXPECT_NE(tensor_digest(tensors, 2), before);
  tensors = two_tensors();
  tensors[0].shape = {1000000};
  EXPECT_NE(tensor_digest(tensors, 2), before);
}

}  // namespace
}  // namespace checkop::digest_test
