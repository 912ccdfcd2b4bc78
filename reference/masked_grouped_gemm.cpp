// SPDX-License-Identifier: Apache-2.0
// masked_grouped_gemm: the product of grouped_gemm where every expert has room for the same number of rows, of which it
// has some: the layout of decoding, where the host knows the room but not the counts. It is an operator of its own,
// because its tensors have another rank and its experts are independent rows of a batch.
#include <array>
#include <optional>
#include <vector>

#include "grouped_product.hpp"
#include "rearranged.hpp"
#include "row_groups.hpp"

namespace checkop {

extern const Emulation kMaskedGroupedGemmForward, kMaskedGroupedGemmBackward;  // emulation/masked_grouped_gemm.cpp

namespace {

constexpr std::string_view kRowsK = "experts capacity k_dim", kRowsN = "experts capacity n_dim",
                           kExpertsNK = "experts n_dim k_dim";
constexpr TensorSpec kA{"a", kRowsK}, kB{"b", kExpertsNK}, kGradC{"grad_c", kRowsN, Fill::upstream};
constexpr TensorSpec kCounts{"counts", "experts", Fill::positions, "", DType::i32};

constexpr std::array kForwardIn{kA, kB, kCounts};
constexpr std::array kForwardOut{OutputSpec{{"c", kRowsN}, Numerics::contraction, "k_dim", /*sampled=*/true}};
constexpr std::array kBackwardIn{kA, kB, kCounts, kGradC};
constexpr std::array kBackwardOut{
    OutputSpec{{"da", kRowsK}, Numerics::contraction, "n_dim", /*sampled=*/true},
    OutputSpec{{"db", kExpertsNK}, Numerics::contraction, "capacity", /*sampled=*/true},
};

// Expert e has the rows [e, i] with i < counts_e; the others are of no expert.
constexpr std::array kPasses{
    Pass{"forward", kForwardIn, kForwardOut, grouped_product::forward, grouped_product::check_forward,
         grouped_product::forward_work, &kMaskedGroupedGemmForward, grouped_product::model_forward,
         grouped_product::kForwardRecipes},
    Pass{"backward", kBackwardIn, kBackwardOut, grouped_product::backward, grouped_product::check_backward,
         grouped_product::backward_work, &kMaskedGroupedGemmBackward, grouped_product::model_backward,
         grouped_product::kBackwardRecipes}};

/// The inputs with room for `capacity` rows of each expert, of which it has counts[e]. In the rest of the room lie
/// copies of its rows, also of those that it no longer has.
std::optional<Rearranged> with_room(const RearrangeArgs& args, int64_t capacity, const std::vector<int64_t>& counts) {
  const Tensor& a = args.in(grouped_product::kOfA);
  const int64_t room = a.shape[1];
  std::vector<int64_t> from, rows;
  for (size_t e = 0; e < counts.size(); ++e) {
    const int64_t first = static_cast<int64_t>(e) * room;
    for (int64_t i = 0; i < capacity; ++i) {
      from.push_back(first + i % room);
      rows.push_back(i < counts[e] ? first + i : -1);
    }
  }
  Rearranged other;
  other.dims = {{"capacity", capacity}};
  other.inputs.resize(args.inputs.size());
  for (const int of_rows : {grouped_product::kOfA, grouped_product::kOfGradC}) {
    if (of_rows >= std::ssize(args.inputs)) continue;
    const Tensor& tensor = args.in(of_rows);
    const auto bytes = static_cast<size_t>(tensor.shape.back()) * info(tensor.dtype).bytes;
    other.inputs[static_cast<size_t>(of_rows)] =
        with_blocks(tensor, {tensor.shape[0], capacity, tensor.shape[2]}, from, bytes);
  }
  const Tensor& given = args.in(grouped_product::kOfGroups);
  other.inputs[grouped_product::kOfGroups] = of_integers(given, given.shape, counts);
  other.rows = {{"experts capacity", std::move(rows)}};
  return other;
}

std::optional<Rearranged> with_more_room(const RearrangeArgs& args) {
  return with_room(args, 2 * args.in(grouped_product::kOfA).shape[1] + 3,
                   integers_of(args.in(grouped_product::kOfGroups)));
}

/// The gradient of an expert's matrix is another then.
std::optional<Rearranged> with_fewer_rows(const RearrangeArgs& args) {
  std::vector<int64_t> counts = integers_of(args.in(grouped_product::kOfGroups));
  for (int64_t& count : counts) count = (count + 1) / 2;
  std::optional<Rearranged> other = with_room(args, args.in(grouped_product::kOfA).shape[1], counts);
  other->rows["experts"] = std::vector<int64_t>(counts.size(), -1);
  return other;
}

constexpr std::array kRearrangements{
    Rearrangement{"documents", "experts with more room", "experts", 1, with_more_room},
    Rearrangement{"documents", "experts with half of their rows", "experts", 1, with_fewer_rows},
};

void refine(const FillArgs& args) { draw_row_counts(args, {"a", "grad_c"}); }

}  // namespace

extern const Operator kMaskedGroupedGemm;
constexpr Operator kMaskedGroupedGemm{
    "masked_grouped_gemm",
    "reduction",
    "c = a b[expert]^T of the first counts[expert] rows that the expert has room for; the others: 0",
    "experts",
    {},
    kPasses,
    nullptr,
    refine,
    /*parallel_dim=*/"",
    /*left_out=*/"rows of no expert",
    kRearrangements};

}  // namespace checkop
